#include "hopper.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/kernels/half.h"
#include "grid.h"
#include "number.h"

namespace emulator {
namespace {

constexpr uint32_t kFirstAddress = 1040;  // the kernel aligns its shared memory itself
constexpr int kRankShift = 24;            // of an address of shared::cluster; 0: the block's own

// An mbarrier is what its eight bytes of shared memory say.
struct Barrier {
    uint16_t arrivals, pending;
    int32_t bytes : 31;
    uint32_t parity : 1;

    void complete_if_done() {
        if (pending != 0 || bytes != 0) return;
        parity ^= 1;
        pending = arrivals;
    }
};
static_assert(sizeof(Barrier) == 8);

Barrier& barrier_at(uint32_t address) { return *reinterpret_cast<Barrier*>(shared_at(address, 8)); }

void complete_bytes(Barrier& barrier, int bytes) {
    barrier.bytes -= bytes;
    barrier.complete_if_done();
}

// Rows of 128 or 64 bytes: the 16-byte pieces of a group of 8 rows are permuted.
uint32_t swizzled(uint32_t address, int row_bytes) {
    return address ^ (address >> 7 & (row_bytes == 128 ? 7 : 3)) << 4;
}

// A box as TMA leaves it in shared memory, 16 bytes at a time; what lies outside of the matrix is zero.
struct Box {
    CUtensorMap map;
    int col, row;

    int row_bytes() const { return map.box_cols * map.element_bytes; }
    int bytes() const { return map.box_rows * row_bytes(); }

    void write(uint8_t* to, uint32_t address) const {
        for (int at = 0; at < bytes(); at += 16) {
            const auto offset = static_cast<uint32_t>(at);
            const int64_t place =
                map.swizzle_bytes > 0 ? int64_t{swizzled(address + offset, map.swizzle_bytes)} - address : at;
            uint8_t piece[16] = {};
            int left = at / row_bytes();
            const int64_t r = row + left % map.counts[0];
            int64_t begin = row * map.pitches[0];
            for (int i = 0; i + 1 < map.rank; left /= map.counts[i++]) begin += left % map.counts[i] * map.pitches[i];
            const int64_t first = int64_t{col} * map.element_bytes + at % row_bytes();
            const int64_t end = map.cols * map.element_bytes;
            if (r < map.rows && first < end) {
                const int64_t inside = end - first < 16 ? end - first : 16;
                std::memcpy(piece, map.data + begin + first, static_cast<size_t>(inside));
            }
            std::memcpy(to + place, piece, 16);
        }
    }
};

// An operand of a wgmma in shared memory: where it begins, in swizzled rows of how many bytes.
struct Operand {
    uint32_t begin;
    int row_bytes;

    explicit Operand(uint64_t descriptor)
        : begin(static_cast<uint32_t>(descriptor & 0x3fff) << 4), row_bytes(descriptor >> 62 == 1 ? 128 : 64) {
        if (descriptor >> 62 != 1 && descriptor >> 62 != 2) fail("a wgmma operand that is not in swizzled rows");
        if (static_cast<int>(descriptor >> 32 & 0x3fff) != 8 * row_bytes / 16)
            fail("a wgmma operand whose groups of 8 rows are not next to each other");
    }
};

const std::array<float, 1 << 16>& half_values() {
    static const auto values = [] {
        std::array<float, 1 << 16> all{};
        for (size_t i = 0; i < all.size(); ++i) {
            all[i] = nestedfp::cpu::to_float(nestedfp::cpu::Half{static_cast<uint16_t>(i)});
        }
        return all;
    }();
    return values;
}

const std::array<float, 256>& e4m3_values() {
    static const auto values = [] {
        std::array<float, 256> all{};
        for (size_t i = 0; i < all.size(); ++i) all[i] = e4m3_to_float(static_cast<uint8_t>(i));
        return all;
    }();
    return values;
}

float half_value(const uint8_t* bytes) {
    uint16_t bits;
    std::memcpy(&bits, bytes, 2);
    return half_values()[bits];
}

// Reads 32 bytes a row, `rows` rows from `first_row` on, as floats [row][element].
template <int ElementBytes>
void read_operand(const Operand& operand, int first_row, int rows, float* to) {
    for (int row = first_row; row < first_row + rows; ++row) {
        for (uint32_t half = 0; half < 32; half += 16) {
            const uint32_t at = operand.begin + static_cast<uint32_t>(row * operand.row_bytes) + half;
            const uint8_t* const bytes = shared_at(swizzled(at, operand.row_bytes), 16);
            for (int i = 0; i < 16; i += ElementBytes) {
                *to++ = ElementBytes == 2 ? half_value(bytes + i) : e4m3_values()[bytes[i]];
            }
        }
    }
}

struct Multiply {
    float* d;
    int tokens;
    const uint32_t* a_registers;
    uint64_t a, b;
    bool is_added;
};

// A warp's 16 rows of the product, for its 32 lanes.
template <int ElementBytes>
void multiply_warp(const std::array<Multiply, 32>& lanes, int warp) {
    constexpr int kDepth = 32 / ElementBytes;
    const int tokens = lanes[0].tokens;
    std::vector<float> a(16 * kDepth), b(static_cast<size_t>(tokens) * kDepth);
    if (ElementBytes == 2) {
        for (int lane = 0; lane < 32; ++lane) {
            for (int word = 0; word < 4; ++word) {
                const auto* const bytes = reinterpret_cast<const uint8_t*>(lanes[lane].a_registers + word);
                float* const to = &a[(lane / 4 + word % 2 * 8) * kDepth + word / 2 * 8 + lane % 4 * 2];
                to[0] = half_value(bytes), to[1] = half_value(bytes + 2);
            }
        }
    } else {
        read_operand<ElementBytes>(Operand(lanes[0].a), 16 * warp, 16, a.data());
    }
    read_operand<ElementBytes>(Operand(lanes[0].b), 0, tokens, b.data());
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < tokens / 2; ++i) {
            const float* const x = &a[(lane / 4 + i / 2 % 2 * 8) * kDepth];
            const float* const y = &b[static_cast<size_t>((i / 4 * 8 + lane % 4 * 2 + i % 2) * kDepth)];
            double sum = lanes[lane].is_added ? lanes[lane].d[i] : 0;
            for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(x[k]) * y[k];
            lanes[lane].d[i] = static_cast<float>(sum);
        }
    }
}

template <int ElementBytes>
void issue(Multiply& mine) {
    together(&mine, [](void*(&all)[32]) {
        std::array<Multiply, 32> lanes;
        for (int i = 0; i < 32; ++i) {
            lanes[i] = *static_cast<Multiply*>(all[i]);
            const bool is_same = lanes[i].tokens == lanes[0].tokens && lanes[i].a == lanes[0].a &&
                                 lanes[i].b == lanes[0].b && lanes[i].is_added == lanes[0].is_added;
            if (!is_same) fail("the lanes of a warp came to different wgmmas");
        }
        const int warp = thread_index() / 32 % 4;
        warp_later([lanes, warp] { multiply_warp<ElementBytes>(lanes, warp); });
    });
}

}  // namespace

uint32_t dynamic_shared() { return kFirstAddress; }

uint32_t address_in(uint32_t address, int rank) {
    return (address & ((1u << kRankShift) - 1)) | static_cast<uint32_t>(rank + 1) << kRankShift;
}

uint8_t* shared_at(uint32_t address, int bytes) {
    const auto rank = static_cast<int>(address >> kRankShift);
    const uint32_t offset = (address & ((1u << kRankShift) - 1)) - kFirstAddress;
    if (address % static_cast<uint32_t>(bytes < 16 ? bytes : 16) != 0) fail("an odd address in shared memory");
    if (int64_t{offset} + bytes > shared_bytes()) fail("an address outside of the block's shared memory");
    return (rank == 0 ? shared_memory() : shared_memory_of(rank - 1)) + offset;
}

void init_barrier(uint32_t barrier, int arrivals) {
    barrier_at(barrier) = {static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0, 0};
}

void arrive(uint32_t address, int expected_bytes) {
    Barrier& barrier = barrier_at(address);
    if (barrier.pending == 0) fail("one arrival too many at an mbarrier");
    barrier.bytes += expected_bytes;
    --barrier.pending;
    barrier.complete_if_done();
}

void wait_for_parity(uint32_t address, int parity) {
    const Barrier* const barrier = &barrier_at(address);
    wait_until([barrier, parity] { return static_cast<int>(barrier->parity) != parity; });
}

void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int col, int row, int blocks) {
    const Box box{map, col, row};
    if (blocks > 1 && map.rank != 2) fail("a multicast box of more than two dimensions");
    if (to % 128 != 0) fail("a box to an address that is no multiple of 128");
    for (int rank = 0; rank < blocks; ++rank) {
        uint8_t* const there = shared_at(blocks == 1 ? to : address_in(to, rank), box.bytes());
        Barrier* const done = &barrier_at(blocks == 1 ? barrier : address_in(barrier, rank));
        std::memset(there, 0xff, static_cast<size_t>(box.bytes()));
        later([there, done, box, to] {
            box.write(there, to);
            complete_bytes(*done, box.bytes());
        });
    }
}

void load_bytes(uint32_t to, const void* from, uint32_t barrier, int bytes) {
    if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a bulk copy of odd bytes");
    uint8_t* const there = shared_at(to, bytes);
    Barrier* const done = &barrier_at(barrier);
    std::memset(there, 0xff, static_cast<size_t>(bytes));
    later([there, done, from, bytes] {
        std::memcpy(there, from, static_cast<size_t>(bytes));
        complete_bytes(*done, bytes);
    });
}

void multiply_half(float* d, int tokens, const uint32_t* a, uint64_t b, bool is_added) {
    Multiply mine{d, tokens, a, 0, b, is_added};
    issue<2>(mine);
}

void multiply_e4m3(float* d, int tokens, uint64_t a, uint64_t b, bool is_added) {
    Multiply mine{d, tokens, nullptr, a, b, is_added};
    issue<1>(mine);
}

}  // namespace emulator
