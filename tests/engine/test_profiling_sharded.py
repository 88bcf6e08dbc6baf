"""What a sharded model's processes exchange, in a trace of NCCL's kernels and in one of gloo's."""

import pytest

from detalbert.engine.profiling import describe, summarize
from tests.engine.test_profiling import MARKS, event


def test_a_sharded_models_exchange_is_told_by_kind() -> None:
    """NCCL's kernels run beside the products: what overlaps counts in both."""
    collectives = [
        event("kernel", "gemm", 1_500, 4_500),
        event("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", 1_000, 2_000),
        event("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", 6_000, 9_000),
        event("kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", 3_000, 4_000),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 4_000, 4_200),
    ]
    found = summarize([*MARKS, *collectives, event("user_annotation", "FSDP::pre_forward", 1, 2)])
    assert found["busy"] == 3.0 / 2 and found["wall"] == 13 / 2
    assert (found["all_gather"], found["reduce_scatter"], found["all_reduce"]) == (0.5, 0.5, 0.1)
    assert describe(found).endswith(
        ", all-reduce 0.1 ms (2%), all-gather 0.5 ms (8%), reduce-scatter 0.5 ms (8%)"
    )
    whole = summarize([*MARKS, *collectives])  # an exchange in parts, but not of parts of a model
    assert "all_gather" not in whole and whole["all_reduce"] == pytest.approx(2.2 / 2)


def test_gloos_work_is_that_of_the_call_before_it() -> None:
    """It says all_reduce for a reduce-scatter. Waits inside of an operator are no work."""
    found = summarize([
        *MARKS,
        event("user_annotation", "FSDP::all_gather (layers.0)", 1_000, 1_900),
        event("user_annotation", "gloo:all_reduce", 0, 10),  # of a call before the trace
        event("cpu_op", "c10d::_allgather_base_", 1_100, 1_200),
        event("user_annotation", "gloo:all_gather", 1_150, 1_800),
        event("cpu_op", "RegisterPostBackwardFunctionBackward", 2_000, 3_000),
        event("cpu_op", "c10d::_reduce_scatter_base_", 2_100, 2_150),
        event("user_annotation", "gloo:all_reduce", 2_200, 2_900),
        event("cpu_op", "c10d::allreduce_", 3_200, 3_210),
        event("user_annotation", "gloo:all_reduce", 3_205, 3_605),
    ])  # fmt: skip
    parts = [found[name] for name in ("all_gather", "reduce_scatter", "all_reduce", "busy")]
    assert parts == pytest.approx([0.65 / 2, 0.7 / 2, 0.4 / 2, (0.05 + 0.3 + 0.005) / 2])
