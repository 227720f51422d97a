const { rspack } = require("@rspack/core");

module.exports = {
  module: {
    // the scripts of the workers are whole already: ship them as files of their own
    rules: [
      {
        test: /[\\/]lib[\\/]assets[\\/][^\\/]+\.(js|html|txt)$/,
        type: "asset/resource",
        generator: { filename: "[name].[contenthash][ext]" },
      },
    ],
  },
  optimization: {
    moduleIds: "named",
    minimizer: [
      new rspack.SwcJsMinimizerRspackPlugin({ exclude: /(engine|layout|page)\.[0-9a-f]+\.js$/ }),
      new rspack.LightningCssMinimizerRspackPlugin(),
    ],
  },
  performance: { hints: false },
};
