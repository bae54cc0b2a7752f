"""Names as kernels, torch operators, HLO instructions and process groups have them."""

import pytest

from meshwright.optimizer.traces.kinds import carries, dtype_of, kind_of, kind_of_hlo

NAMES = {
    "all_gather": (
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-gather-start.5", "_allgather_base",
        "rcclGenericKernel<1>(AllGather)", "all-gather.3.clone",
    ),
    "reduce_scatter": ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce-scatter.1", "_reduce_scatter_base"),
    "all_reduce": (
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(x)", "ncclKernel_AllReduce_RING_LL_Sum_int8_t(ncclDevComm*)",
        "all-reduce-done.2", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)", "allreduce",
    ),
    "all_to_all": ("all-to-all.3", "all_to_allv", "void deep_ep::intranode::dispatch<8, 768>(x)", "ragged-all-to-all"),
    "send_recv": ("ncclDevKernel_SendRecv(x)", "collective-permute-done", "send.4", "recv-done.2"),
    "broadcast": ("ncclDevKernel_Broadcast_RING_LL(x)",),
    "host_to_device": ("Memcpy HtoD (Pinned -> Device)", "MemcpyH2D"),
    "device_to_host": ("Memcpy DtoH (Device -> Pinned)", "MemcpyD2H"),
    "optimizer": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>(x)",
        "aten::_fused_adamw_",
    ),
    "attention": (
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(x)", "fmha_cutlassF_bf16_aligned",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "aten::_scaled_dot_product_flash_attention",
    ),
    "matmul": (
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16>(x)", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "triton_tem_fused_mm_0",
        "aten::addmm", "aten::bmm", "aten::linear", "aten::_scaled_mm", "dot.8", "dot_general.25", "gemm_fusion_dot_5",
    ),
    "elementwise": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float>>(x)", "triton_red_fused_mean_1",
        "void at::native::reduce_kernel<512, 1>(x)", "Memcpy DtoD (Device -> Device)", "Memset (Device)", "splitKreduce_kernel",
        "aten::add_", "aten::mul", "aten::native_layer_norm", "aten::cat", "loop_add_fusion.2", "multiply_subtract_fusion",
        "input_reduce_fusion", "transpose.3", "copy-start.2", "broadcast.1",
    ),
    "other": ("while.5", "fusion.12", "custom-call.4", "tuple.1", "AddmmBackward0", "aten::empty", ""),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_name_tells_the_kind(kind: str, name: str) -> None:
    assert kind_of(name) == kind


def test_the_kernel_speaks_before_its_operator() -> None:
    assert kind_of("splitKreduce_kernel", "aten::mm") == "elementwise"
    assert kind_of("my_kernel", "aten::mm") == "matmul"


@pytest.mark.parametrize(
    ("name", "category", "where", "kind"),
    [
        ("fusion.3", "convolution fusion", "jit(step)/attention/dot_general", "matmul"),
        ("fusion.4", "loop fusion", "", "elementwise"),
        ("custom-call.2", "custom-call", "jit(step)/splash_attention", "attention"),
        ("custom-call.3", "custom-call", "jit(step)/gmm", "other"),
        ("all-reduce.7", "all-reduce", "", "all_reduce"),
        ("all-gather-start.1", "async-start", "", "all_gather"),
        ("while.1", "while", "jit(step)/while", "other"),
        ("dot.1", "", "", "matmul"),
    ],
)
def test_xla_tells_more(name: str, category: str, where: str, kind: str) -> None:
    assert kind_of_hlo(name, category, where) == kind


@pytest.mark.parametrize(
    ("label", "group"),
    [
        ("mesh_dp_shard", "data"), ("mesh_dp_replicate", "data"), ("mesh_dp_shard_cp", "data"), ("mesh_tp", "tp"),
        ("mesh_pp", "pp"), ("mesh_cp", "cp"), ("mesh_ep", "ep"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("DATA_PARALLEL_GROUP_WITH_CP", "data"), ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("default_pg", None), ("0", None), ("", None), ("mesh_dp_step", "data"),
    ],
)  # fmt: skip
def test_a_process_group_tells_its_use(label: str, group: str | None) -> None:
    assert carries(label) == group


def test_dtypes_are_those_of_chips() -> None:
    told = {
        text: dtype_of(text)
        for text in ("c10::BFloat16", "BFloat16", "bf16", "c10::Half", "float", "c10::Float8_e4m3fn")
    }
    assert list(told.values()) == ["bf16", "bf16", "bf16", "fp16", "fp32", "fp8"]
    assert dtype_of("long int") is None
