"""The table of operations: which have a module, its name, and why others stay calls.

An operation may come as a function of ``torch``, ``torch.nn.functional``, ``torch.linalg``, ``torch.fft`` or
``torch.special``, as a ``Tensor`` method, or as a Python operator. All of them lead to the same class in
:mod:`prepbench.prepare.modules`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from prepbench._torch_compat.operators import NN_FUNCTIONS, RNN_FUNCTIONS, OpOverload

# Every operation of torch by name: its group if it has a module, or the reason why it stays a call.
#
# Names are those of torch, without the trailing underscore of in-place forms.


WITH_MODULE = {
    "activation": """
        relu relu6 elu selu celu gelu silu mish sigmoid tanh logsigmoid log_sigmoid softplus softshrink hardshrink
        tanhshrink softsign threshold hardtanh hardswish hardsigmoid leaky_relu rrelu prelu glu softmax log_softmax
        softmin gumbel_softmax""",
    "elementwise": """
        add sub mul div mod floor_divide remainder fmod pow float_power neg pos abs sign sgn signbit
        reciprocal sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh
        asinh acosh atanh sinc erf erfc erfinv ceil floor round trunc frac clamp clamp_min clamp_max clip lerp rsub
        addcmul addcdiv maximum minimum fmax fmin hypot copysign nextafter ldexp logaddexp logaddexp2 logit lgamma
        digamma polygamma mvlgamma i0 igamma igammac xlogy deg2rad rad2deg nan_to_num heaviside gcd lcm polar complex
        real imag conj conj_physical resolve_conj resolve_neg angle frexp bitwise_and bitwise_or bitwise_xor
        bitwise_not bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor logical_not where
        masked_fill masked_scatter to type type_as float double half bfloat16 int long short char byte bool cfloat
        cdouble chalf cpu cuda detach clone alias_copy contiguous positive
        airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u
        chebyshev_polynomial_v chebyshev_polynomial_w entr erfcx expit gammainc gammaincc gammaln
        hermite_polynomial_h hermite_polynomial_he i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log_ndtr
        modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri psi
        scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t
        shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
        spherical_bessel_j0 xlog1py zeta native_dropout fill zero fill_diagonal copy""",
    "comparison": """
        eq ne lt le gt ge isclose isfinite isinf isnan isneginf isposinf isreal isin""",
    "reduction": """
        sum mean prod max min amax amin aminmax argmax argmin all any std var std_mean var_mean median nanmedian
        nanmean nansum mode quantile nanquantile norm dist logsumexp count_nonzero trace cumsum cumprod cummax cummin
        logcumsumexp diff histc histogram histogramdd bincount kthvalue topk sort argsort msort unique
        unique_consecutive searchsorted bucketize nonzero nonzero_static argwhere renorm norm_except_dim
        native_norm frobenius_norm nuclear_norm gradient trapezoid trapz cumulative_trapezoid cov corrcoef
        sum_to_size hash_tensor""",
    "shape": """
        reshape reshape_as view view_as view_as_real view_as_complex flatten unflatten ravel squeeze unsqueeze
        permute transpose t adjoint swapaxes swapdims movedim moveaxis expand expand_as broadcast_to
        broadcast_tensors repeat repeat_interleave tile flip fliplr flipud roll rot90 cat concat concatenate stack
        hstack vstack dstack column_stack row_stack block_diag chunk split split_with_sizes tensor_split hsplit vsplit
        dsplit unsafe_chunk unsafe_split unsafe_split_with_sizes unbind select narrow narrow_copy getitem gather
        scatter scatter_add scatter_reduce index index_select index_add index_copy index_fill index_put index_reduce
        masked_select take take_along_dim put diagonal diag diag_embed diagflat diagonal_scatter select_scatter
        slice_scatter slice_inverse as_strided as_strided_copy as_strided_scatter tril triu meshgrid atleast_1d
        atleast_2d atleast_3d unfold combinations cartesian_prod H T mH mT diagonal_copy expand_copy permute_copy
        select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy
        unfold_copy unsqueeze_copy view_copy view_as_real_copy view_as_complex_copy detach_copy unravel_index
        slice segment_reduce""",
    "pooling": """
        max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
        avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d_with_indices
        adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices lp_pool1d lp_pool2d lp_pool3d
        fractional_max_pool2d fractional_max_pool3d fractional_max_pool2d_with_indices
        fractional_max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d""",
    "padding": "pad constant_pad_nd fold im2col col2im",
    "normalisation": """
        batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm normalize native_batch_norm
        native_layer_norm native_group_norm""",
    "matmul": """
        matmul mm bmm mv addmm addmv addr baddbmm addbmm dot vdot inner outer ger einsum tensordot kron cross
        chain_matmul linear bilinear cdist pdist pairwise_distance cosine_similarity matrix_exp matrix_power det
        logdet slogdet inverse pinverse cholesky cholesky_inverse cholesky_solve qr svd svd_lowrank pca_lowrank lu
        lu_solve lu_unpack geqrf orgqr ormqr triangular_solve lobpcg
        linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal linalg_eig linalg_eigh
        linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor
        linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex
        linalg_lu_solve linalg_matmul linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank
        linalg_multi_dot linalg_norm linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
        linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander
        linalg_vecdot linalg_vector_norm
        fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ifftshift
        fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn stft istft""",
    "attention": "scaled_dot_product_attention multi_head_attention_forward",
    "recurrent": "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    "embedding": "embedding embedding_bag one_hot",
    "convolution": """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution conv_tbc""",
    "interpolation": """
        interpolate upsample upsample_nearest upsample_bilinear grid_sample grid_sampler grid_sampler_2d grid_sampler_3d
        affine_grid affine_grid_generator pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle""",
    "dropout": """
        dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout""",
    "random": """
        bernoulli multinomial normal poisson binomial uniform random exponential geometric cauchy log_normal
        rand_like randn_like randint_like rand randn randint randperm""",
    "constant": """
        zeros ones full empty arange range linspace logspace eye tensor scalar_tensor as_tensor zeros_like ones_like
        full_like empty_like new_zeros new_ones new_full new_empty new_tensor tril_indices triu_indices vander
        hann_window hamming_window blackman_window bartlett_window kaiser_window empty_strided empty_permuted
        new_empty_strided from_numpy""",
    "loss": """
        binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss
        gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss linear_cross_entropy margin_ranking_loss
        mse_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss
        smooth_l1_loss soft_margin_loss triplet_margin_loss triplet_margin_with_distance_loss""",
    "fake quantization": """
        fake_quantize_per_channel_affine fake_quantize_per_tensor_affine fused_moving_avg_obs_fake_quant""",
}  # fmt: skip
"""Operations that have a module, by group."""

WITHOUT_MODULE = {
    "it tells something about a tensor and makes none": """
        size dim ndim ndimension numel nelement element_size itemsize nbytes stride storage_offset get_device shape
        dtype device layout requires_grad is_leaf grad_fn grad_dtype name names output_nr retains_grad volatile
        dim_order is_coalesced is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_neg
        is_nonzero is_pinned is_same_size is_set_to is_shared is_signed is_tensor is_cpu is_cuda is_ipu is_maia is_meta
        is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu has_names
        dense_dim sparse_dim equal allclose storage_type item tolist numpy result_type can_cast promote_types
        len isinstance hash format repr contains reversed reduce_ex index_ complex_ int_ float_ bool_ dir array
        array_wrap dlpack dlpack_device iter version nested_tensor_size nested_tensor_strides
        nested_tensor_storage_offsets is_view dimI dimV nnz broadcast_shapes finfo iinfo sym_size""",
    "it is arithmetic on sizes": """
        divmod
        sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum sym_sqrt isqrt""",
    "it changes how autograd or memory treats a tensor, not its values": """
        backward requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook grad data base
        backward_hooks post_accumulate_grad_hooks cdata set resize resize_as resize_as_sparse sparse_resize
        sparse_resize_and_clear share_memory pin_memory record_stream data_ptr const_data_ptr storage untyped_storage
        module_load apply map map2 setstate clear_non_serializable_cached_data set_grad_enabled
        nested_tensor_storage""",
    "it opens or closes a region of the forward": """
        autocast enter_autocast exit_autocast autocast_to_full_precision autocast_to_reduced_precision""",
    "it writes into a part of an existing tensor": "setitem setattr delitem",
    "it moves between devices that this table does not know": "ipu xpu mtia to_mkldnn",
    "it belongs to a sparse or quantized storage format": """
        coalesce coalesced ccol_indices ccol_indices_copy col_indices col_indices_copy crow_indices crow_indices_copy
        row_indices row_indices_copy indices indices_copy values values_copy to_dense to_sparse sparse_mask
        sparse_mask_projection dsmm hsmm hspmm saddmm smm spmm sspaddmm dequantize int_repr q_per_channel_axis
        q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme quantize_per_channel
        quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm quantized_gru_cell quantized_lstm_cell
        quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell
        quantized_rnn_tanh_cell choose_qparams_optimized fbgemm_linear_fp16_weight
        fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight
        fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16
        fbgemm_pack_quantized_matrix""",
    "it is the kernel of one kind of device": """
        batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
        batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats miopen_batch_norm
        miopen_convolution miopen_convolution_add_relu miopen_convolution_relu miopen_convolution_transpose
        miopen_depthwise_convolution miopen_rnn""",
}
"""Operations that stay calls, by reason."""

ALIASES = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "truediv": "div",
    "absolute": "abs", "negative": "neg", "invert": "bitwise_not", "inv": "bitwise_not", "fix": "trunc",
    "floordiv": "floor_divide", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2",
    "arctanh": "atanh", "concat": "cat", "concatenate": "cat", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "not_equal": "ne", "positive": "pos", "swapaxes": "transpose", "swapdims": "transpose",
    "moveaxis": "movedim", "row_stack": "vstack", "clip": "clamp", "expit": "sigmoid", "log_sigmoid": "logsigmoid",
    "psi": "digamma", "gammaln": "lgamma", "multigammaln": "mvlgamma", "gammainc": "igamma", "gammaincc": "igammac",
    "trapz": "trapezoid", "ger": "outer", "constant_pad_nd": "pad", "mod": "remainder",
    "max_pool1d_with_indices": "max_pool1d", "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d", "adaptive_max_pool1d_with_indices": "adaptive_max_pool1d",
    "adaptive_max_pool2d_with_indices": "adaptive_max_pool2d",
    "adaptive_max_pool3d_with_indices": "adaptive_max_pool3d",
    "fractional_max_pool2d_with_indices": "fractional_max_pool2d",
    "fractional_max_pool3d_with_indices": "fractional_max_pool3d",
}  # fmt: skip
"""Other names of the same operation."""

CLASS_NAMES = {
    "add": "Add", "sub": "Subtract", "mul": "Multiply", "div": "Divide", "cat": "Concat", "matmul": "MatMul",
    "floor_divide": "FloorDivide", "exp": "Exponential", "cumsum": "CumSum", "rsqrt": "RSqrt", "getitem": "GetItem",
    "relu": "ReLU", "relu6": "ReLU6", "elu": "ELU", "selu": "SELU", "celu": "CELU", "gelu": "GELU", "silu": "SiLU",
    "prelu": "PReLU", "rrelu": "RReLU", "glu": "GLU", "leaky_relu": "LeakyReLU", "logsigmoid": "LogSigmoid",
    "lstm": "LSTM", "gru": "GRU", "t": "T", "H": "H", "T": "MatrixT", "mH": "MH", "mT": "MT", "eq": "Equal",
    "ne": "NotEqual", "lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual", "mm": "Mm", "bmm": "Bmm",
    "rms_norm": "RMSNorm", "pos": "Positive", "neg": "Negative",
}  # fmt: skip
"""Names of module classes that do not follow from the name of the operation."""


_PREFIXES = ("special_", "sym_size")


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Attributes:
        name: torch's name, e.g. ``"softmax"``.
        group: the kind of operation, e.g. ``"activation"``.
        class_name: its class in :mod:`prepbench.prepare.modules`; "" if it stays a call.
        reason: why it stays a call; "" if it has a module.
    """

    name: str
    group: str = ""
    class_name: str = ""
    reason: str = ""


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_") if part)


def _rows() -> dict[str, Operation]:
    rows = {name: Operation(name, reason=reason) for reason, names in WITHOUT_MODULE.items() for name in names.split()}
    for group, names in WITH_MODULE.items():
        for name in names.split():
            same = ALIASES.get(name, name)
            rows[name] = Operation(name, group, CLASS_NAMES.get(same) or _camel(same))
    for name, same in ALIASES.items():
        rows.setdefault(name, Operation(name, rows[same].group, rows[same].class_name))
    return rows


TABLE: dict[str, Operation] = _rows()
"""Every operation by name."""

_NAMESPACES = (torch, F, torch.Tensor, torch.special, torch.linalg, torch.fft, NN_FUNCTIONS, RNN_FUNCTIONS)
_IN_PLACE_OPERATORS = {
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
    "imatmul", "idiv",
}  # fmt: skip


def function_name(function: Callable[..., Any] | str) -> str:
    """Return the name of a function or method as torch writes it, without underscores and overload names of operators.

    Example:
        >>> function_name(operator.iadd), function_name(torch.relu_), function_name(torch.Tensor.__getitem__)
        ('iadd', 'relu_', 'getitem')
    """
    if isinstance(function, OpOverload):
        return str(function.overloadpacket.__name__)
    name = function if isinstance(function, str) else str(getattr(function, "__name__", ""))
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    elif name.endswith("_") and name[:-1] in ("and", "or", "not"):
        name = name[:-1]
    for prefix in _PREFIXES:
        if name.startswith(prefix) and name.removeprefix(prefix).rstrip("_") in TABLE:
            name = name.removeprefix(prefix)
    return name.lstrip("_")


def is_in_place(function: Callable[..., Any] | str) -> bool:
    """Return whether the function changes its first argument, as ``relu_`` and ``+=`` do."""
    name = function_name(function)
    return name in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))


def operation_of(function: Callable[..., Any] | str) -> Operation | None:
    """Return the row for a function, or for a ``Tensor`` method given by name; ``None`` for functions outside of torch.

    Example:
        >>> operation_of(torch.nn.functional.softmax).class_name, operation_of("add_").class_name
        ('Softmax', 'Add')
    """
    name = function_name(function)
    if not isinstance(function, str) and not _is_torchs(function, name):
        return None
    for candidate in (name, name.removesuffix("_"), name[1:] if name in _IN_PLACE_OPERATORS else name):
        if candidate in TABLE:
            return TABLE[candidate]
    return None


def _is_torchs(function: Callable[..., Any], name: str) -> bool:
    if isinstance(function, OpOverload):
        return function.namespace in ("aten", "prims")
    if getattr(operator, function.__name__ if hasattr(function, "__name__") else "", None) is function:
        return True
    if getattr(function, "__module__", "") == "builtins" or function in (abs, round, divmod, pow, sum, max, min):
        return True
    own = getattr(function, "__name__", "")
    places = [getattr(space, spelled, None) for space in _NAMESPACES for spelled in (own, name)]
    home = str(getattr(function, "__module__", "") or "")
    return any(found is function for found in places) or home.split(".")[0] == "torch" or home == "_operator"
