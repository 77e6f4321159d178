// Every op schema of the extension. Loading the library registers them, through torch's stable ABI, so that one binary
// serves all torch releases from the one it targets on; nestedfp/kernels/ops.py holds the fakes and the documentation.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checks.h"
#include "cpu/kernels/kernels.h"
#include "mode.h"

namespace nestedfp {
namespace {

void set_mode(int64_t mode) {
    STD_TORCH_CHECK(mode == static_cast<int64_t>(Precision::kFp16) || mode == static_cast<int64_t>(Precision::kFp8),
                    "nestedfp::set_mode: expected 0 (FP16) or 1 (FP8), got ", mode);
    set_mode_in_force(static_cast<Precision>(mode));
}

void set_mixed(Tensor is_exact) {
    const char* const op = "nestedfp::set_mixed";
    check_cpu(op, "is_exact", is_exact);
    check_dtype(op, "is_exact", is_exact, ScalarType::Bool);
    check_contiguous(op, "is_exact", is_exact);
    const auto* const bytes = static_cast<const uint8_t*>(is_exact.const_data_ptr());
    std::vector<uint8_t> mask(bytes, bytes + is_exact.numel());
    const auto exact = std::count(mask.begin(), mask.end(), 1);
    STD_TORCH_CHECK(is_exact.dim() == 1 && exact > 0 && exact < is_exact.numel(), op,
                    ": expected is_exact of shape [rows] with exact rows and others, got ", exact, " exact ones of ",
                    shape_of(is_exact), "; use set_mode for rows of one kind");
    set_mixed_in_force(std::move(mask));
}

int64_t get_mode() { return mode_in_force().mode; }

// 0: no mixed step is in force; -1: one whose exact rows are not the first ones.
int64_t exact_rows() { return mode_in_force().rows > 0 ? mode_in_force().exact_rows.load() : 0; }

// Where the mode is, as an integer, for the library of CUDA kernels, which reads it in every call.
int64_t mode_address() { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(&mode_in_force())); }

std::string cpu_isa() { return cpu::kernels().isa; }

}  // namespace
}  // namespace nestedfp

STABLE_TORCH_LIBRARY(nestedfp, m) {
    m.def("split(Tensor weight) -> (Tensor upper, Tensor lower, Tensor counts)");
    m.def("join(Tensor upper, Tensor lower) -> Tensor");
    m.def("pack(Tensor upper, Tensor lower) -> (Tensor packed_upper, Tensor packed_lower)");
    m.def("join_rows(Tensor upper, Tensor lower, int n, int k, int first_row, int rows) -> Tensor");
    m.def(
        "linear(Tensor x, Tensor upper, Tensor lower, Tensor? bias, Tensor? outlier_rows, Tensor? outlier_cols, "
        "Tensor? outlier_deltas, SymInt n, SymInt k, bool quantize_activations, bool is_exact=False) -> Tensor");
    m.def(
        "linear_carried(Tensor carrier, Tensor scales, Tensor upper, Tensor lower, Tensor? bias, SymInt n, SymInt k) "
        "-> Tensor");
    // On a CPU these three are nestedfp/kernels/activations.py's.
    m.def("rms_norm(Tensor x, Tensor weight, float epsilon) -> (Tensor carrier, Tensor scales)");
    m.def(
        "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float epsilon) -> (Tensor carrier, Tensor scales, "
        "Tensor sum)");
    m.def("silu_and_mul(Tensor x) -> (Tensor carrier, Tensor scales)");
    // On a GPU alone.
    m.def("quantize_rows(Tensor x) -> (Tensor codes, Tensor scales)");
    m.def(
        "experts_product(Tensor(a!) out, Tensor x, Tensor upper, Tensor lower, Tensor? scales, Tensor row_ids, "
        "Tensor tile_experts, Tensor padded_rows, int valid, int tile_rows, bool is_gated) -> ()");
    m.def("set_mode(int mode) -> ()");
    m.def("set_mixed(Tensor is_exact) -> ()");
    m.def("get_mode() -> int");
    m.def("exact_rows() -> int");
    m.def("mode_address() -> int");
    m.def("cpu_isa() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(nestedfp, CompositeExplicitAutograd, m) {
    m.impl("set_mode", TORCH_BOX(&nestedfp::set_mode));
    m.impl("set_mixed", TORCH_BOX(&nestedfp::set_mixed));
    m.impl("get_mode", TORCH_BOX(&nestedfp::get_mode));
    m.impl("exact_rows", TORCH_BOX(&nestedfp::exact_rows));
    m.impl("mode_address", TORCH_BOX(&nestedfp::mode_address));
    m.impl("cpu_isa", TORCH_BOX(&nestedfp::cpu_isa));
}
