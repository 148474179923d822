// Kernels with deliberate bugs that the machine and its watch must detect.
#pragma once

#include <cstdint>

namespace metroplex::kernels_on_host {

enum class Fault {
  none,
  no_barrier,      // threads immediately read values that others wrote to shared memory
  lone_barrier,    // half of the threads reach a barrier
  one_too_far,     // the last element's neighbor
  narrow_stride,   // rows times stride in 32 bits
  extra_block,     // one block more than there are blocks of elements
  beyond_room,     // shared memory beyond the size in the launch
  beyond_array,    // shared memory beyond the kernel's declared array
  unaligned,       // four elements at once, from the second one on
  unwritten,       // reads uninitialized shared memory
  between_blocks,  // every block adds to one number
  // Matmuls of tiles.
  tile_between,  // begins 16 bytes after a multiple of 32
  tile_rows,     // rows are 40 bytes apart
  tile_lane,     // one lane passes another tile
  tile_warp,     // one lane has ended
  tile_at_once   // immediately reads sums that other lanes have stored
};

// out[i] of n = x[i] + x[i + 1 - 2 (i % 2)], the neighbor's value through shared memory; n a multiple of 256.
void planted_pairs(Fault fault, const float* x, float* out, int64_t n);
// out[i] of n = x[n - 1 - i], through dynamic shared memory and through an array; n at most 256.
void planted_mirror(Fault fault, const float* x, float* out, int64_t n);
// out[i] of 4 = x[i], in one access.
void planted_pack(Fault fault, const float* x, float* out);
// out[16][16] = x x^T, of x [16][16] in fp16.
void planted_tiles(Fault fault, const uint16_t* x, float* out);
// x[row * stride] = row.
void planted_rows(Fault fault, uint16_t* x, int64_t rows, int64_t stride);

}  // namespace metroplex::kernels_on_host
