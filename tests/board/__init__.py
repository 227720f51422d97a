"""The board: trained networks on real data, each beside the runtime's own quantization tool."""
