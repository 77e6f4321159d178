"""Constants that C++ and Python both define have one value."""

import struct
import subprocess

from gemm_library import CSRC

from nestedfp.format import FORMAT_VERSION, LIMIT, UPPER_SCALE
from nestedfp.kernels import activations, cuda_library
from nestedfp.modes import CODES, Mode

PAIRS = {
    "kFormatVersion": FORMAT_VERSION,
    "kLimitMagnitude": struct.unpack("<H", struct.pack("<e", LIMIT))[0],
    "kUpperScale": int(UPPER_SCALE),
    "int(Precision::kFp16)": CODES[Mode.FP16],
    "int(Precision::kFp8)": CODES[Mode.FP8],
    "kCarrierColumns": activations.CARRIER_COLUMNS,
    "kMaxNormColumns": activations.MAX_NORM_COLUMNS,
    "kBlockRows": cuda_library.BLOCK_ROWS,
    "kBlockCols": cuda_library.BLOCK_COLS,
    "kStreamK": cuda_library.STREAM_K,
    "kMaxClusterParts": cuda_library.MAX_CLUSTER_PARTS,
    "kMaxWorkspaceParts": cuda_library.MAX_WORKSPACE_PARTS,
    "kMaxWorkspaceBytes": cuda_library.MAX_WORKSPACE_BYTES,
}


def test_cpp_and_python_agree():
    headers = ("activations.h", "cuda/config/gemm.h", "cuda/kernels/kernels.h", "cuda/kernels/layout.h")
    lines = [f'#include "{header}"' for header in headers] + ["using namespace nestedfp; using namespace cuda;"]
    lines += [f'static_assert({name} == {value}, "{name}");' for name, value in PAIRS.items()]
    command = ["c++", "-std=c++17", "-fsyntax-only", f"-I{CSRC}", "-x", "c++", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
