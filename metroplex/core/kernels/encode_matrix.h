// Encodes a matrix in 8 bits for both of its products: as it is for sums over columns, and transposed for sums over
// rows. The matrix is read once. Values and factors are those of round_blocks.h.
#pragma once

#include <cstdint>

#include "kernels/round_blocks.h"

namespace metroplex::kernels {

struct MatrixShape {
  int64_t rows = 0, columns = 0;  // contiguous
  // Values that share a factor: 0: all. Otherwise `block` values along the sum of a product, or block x block.
  int64_t block = 0;
  bool square = false;
  SmallNumber number = SmallNumber::e4m3;  // not E2M1
  BlockFactor factor = BlockFactor::fp32;

  constexpr bool shares_codes() const { return block == 0 || square; }  // both products have the same codes
  constexpr RoundShape over_columns() const {
    return {rows, columns, 1, square ? block : block > 0, block, number, factor};
  }
  constexpr RoundShape over_rows() const {
    return {rows, columns, 1, block, square ? block : block > 0, number, factor};
  }
};

// Codes are written if their factors are not null: [1], or one for each block.
template <class W>
struct EncodedMatrix {
  uint8_t* codes = nullptr;  // [rows, columns]
  W* decode = nullptr;
  uint8_t* transposed = nullptr;  // [columns, rows]
  W* transposed_decode = nullptr;
  W* largest = nullptr;  // [1]: becomes the larger of itself and the largest magnitude of the matrix
};
// `magnitude` [1]: the magnitude that determines the factor of a matrix without blocks.
template <class T>
void encode_matrix(const EncodedMatrix<Wide<T>>& out, const T* x, const Wide<T>* magnitude, const MatrixShape& shape);

// Codes [rows, columns] -> [columns, rows]: bytes, or with `pairs` E2M1 [rows, columns / 2] -> [columns, rows / 2],
// of even numbers of rows and columns.
void transpose_codes(uint8_t* to, const uint8_t* from, int64_t rows, int64_t columns, bool pairs);

// GPU versions, as those of round_blocks.h. Blocks: 16, 32, 64 or 128 values, squares of 128. `parts`: scratch for
// kEncodeBlocks numbers.
constexpr int64_t kEncodeBlocks = 1024;
template <class T>
void encode_matrix_cuda(const EncodedMatrix<Wide<T>>& out, Wide<T>* parts, const T* x, const Wide<T>* magnitude,
                        const MatrixShape& shape, CUstream_st* stream);
void transpose_codes_cuda(uint8_t* to, const uint8_t* from, int64_t rows, int64_t columns, bool pairs,
                          CUstream_st* stream);

}  // namespace metroplex::kernels
