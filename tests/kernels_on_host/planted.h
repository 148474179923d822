// Kernels that are wrong on purpose: what the machine and its watch must find.
#pragma once

#include <cstdint>

namespace metroplex::kernels_on_host {

enum class Fault {
  none,
  no_barrier,      // threads read what others wrote in shared memory, at once
  lone_barrier,    // half of the threads come to a barrier
  one_too_far,     // the last element's neighbour
  narrow_stride,   // rows times stride in 32 bits
  extra_block,     // one block more than there are blocks of elements
  beyond_room,     // shared memory behind what the launch asked for
  beyond_array,    // shared memory behind what the kernel declares
  unaligned,       // four elements at once, from the second one on
  unwritten,       // shared memory is read that nobody wrote
  between_blocks,  // every block adds to one number
  // Of products of tiles.
  tile_between,  // begins 16 bytes behind a multiple of 32
  tile_rows,     // rows are 40 bytes apart
  tile_lane,     // one lane brings another tile
  tile_warp,     // one lane has ended
  tile_at_once   // sums are read where other lanes have stored them, at once
};

// out[i] of n = x[i] + x[i + 1 - 2 (i % 2)], the neighbour's by way of shared memory; n a multiple of 256.
void planted_pairs(Fault fault, const float* x, float* out, int64_t n);
// out[i] of n = x[n - 1 - i], by way of the shared memory that the launch asks for and of an array; n at most 256.
void planted_mirror(Fault fault, const float* x, float* out, int64_t n);
// out[i] of 4 = x[i], in one access.
void planted_pack(Fault fault, const float* x, float* out);
// out[16][16] = x x^T, of x [16][16] in fp16.
void planted_tiles(Fault fault, const uint16_t* x, float* out);
// x[row * stride] = row.
void planted_rows(Fault fault, uint16_t* x, int64_t rows, int64_t stride);

}  // namespace metroplex::kernels_on_host
