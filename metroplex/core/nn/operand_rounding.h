// Rounds operands of matrix products to 8 bits (precision.fp8_format) or 4 bits (fp4_format), with the scales of
// NVIDIA's TransformerEngine. Rounded operands are multiplied in fp32 (fp64 in an fp64 run), in which the product of
// two of them is exact. The result is that of a product of the codes with fp32 sums. In bf16 runs, blockwise and
// mxfp8 multiply in bf16, which represents the rounded operands exactly. Experts with delayed and tensorwise multiply
// the codes in bf16, and then each sum by both factors (kernels/grouped_product.h).
//
//   recipe      values that share a factor                                   factor
//   delayed     as tensorwise, from the largest magnitudes of earlier steps  fp32
//   tensorwise  the microbatch's tensor on all ranks; an expert's rows       fp32
//   blockwise   1 x 128 along the sum; weights 128 x 128                     power of two
//   mxfp8       1 x 32 along the sum                                         power of two
//   nvfp4       1 x 16 along the sum; weights 16 x 16                        E4M3, times tensorwise in fp32
//
// nvfp4 also rounds gradients stochastically, and rotates the operands of weight gradients (kernels::rotate_rows).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "config/precision.h"
#include "device/launch_point.h"
#include "kernels/round_blocks.h"
#include "kernels/rounding_errors.h"
#include "kernels/shard_codes.h"
#include "nn/dropout.h"
#include "nn/layer_context.h"
#include "nn/named_tensor.h"
#include "nn/rounding_meter.h"
#include "nn/scaled_product.h"

namespace metroplex::nn {

enum class Operand { input, weight, gradient };
// The dimension of a matrix that a product sums over.
enum class SumOver { rows, columns };

// Consecutive rows that never share a block. `counts` [groups] int64 on the device; undefined: equal numbers of rows.
struct RowGroups {
  int64_t groups = 1;
  at::Tensor counts = {};
};

struct RoundOptions {
  RowGroups groups = {};
  bool counts = false;         // adds the magnitude to the history, and the figures to the meter
  DropoutMask positions = {};  // of gradients: what OperandRounding::positions() returned
  at::Tensor out = {};         // receives the rounded values; undefined: a new tensor
  bool bf16_codes = false;     // of encode() and make_codes(): the codes are bf16 numbers
  at::Tensor magnitude = {};   // of encode_matrix(): MatrixCodes::magnitude of the same matrix; undefined: found
};

// The products that a matrix is encoded for: with sums over its columns, over its rows.
struct MatrixUses {
  bool columns = false, rows = false;
};
// Codes of a matrix [rows, columns] for its products, undefined for others.
struct MatrixCodes {
  Codes columns;
  Codes rows;            // transposed, so that their last dimension is the sum's
  at::Tensor magnitude;  // [1], that determined the factor; undefined with delayed scales, and with factors of blocks
};

// A shard of a stack of matrices: elements [begin, begin + values.numel()) of the flattened stack.
struct WeightShard {
  at::Tensor values, codes;  // one-dimensional; codes: bytes that encode() writes
  int64_t begin = 0;
  int64_t matrices = 1, rows = 0, columns = 0;  // rows and columns of a matrix
  int64_t matrix_size() const { return rows * columns; }
};

class OperandRounding {
 public:
  OperandRounding() = default;  // returns operands unchanged
  // The rounding of the layer <module>. shards: for each operand, the groups of ranks that hold parts of one tensor.
  OperandRounding(const LayerContext& context, const std::string& module,
                  std::array<std::vector<comm::Group>, 3> shards);

  // The columns of gradients: `features` in the unsharded layer, of which this rank holds `ranges` (empty: all).
  void set_gradient_columns(int64_t features, const std::vector<topology::RowRange>& ranges);
  // Locates gradients [s, b, ..] whose rows begin at row `first_row` of the microbatch. Empty without stochastic
  // rounding.
  DropoutMask positions(at::IntArrayRef sizes_sb, int64_t first_row, const Microbatch& batch) const;
  // Locates rows that have no position in a sequence, by their number from `first_row` on. `counter` [1] int64:
  // number of the microbatch.
  DropoutMask positions(int64_t num_rows, int64_t first_row, const at::Tensor& counter) const;

  const device::Target& target() const { return target_; }
  bool rounds() const { return recipe_ != config::Recipe::none; }
  // Whether the factors are those of blocks.
  bool has_blocks() const { return config::operand_block(recipe_) > 0; }
  bool rounds_weight_gradients() const { return rounds() && precision_.fp8_wgrad; }
  // With delayed scales: creates and returns the history of magnitudes <name>.operand_magnitudes [1 + length, 3,
  // groups], else null. Row 0 has the magnitudes in use, the others those of the last steps, the newest first.
  // Columns are operands. `all`: the ranks whose operands share the history; they call Buffer::apply together.
  // `groups`: the split of the experts, if any.
  std::shared_ptr<Buffer> make_history(const std::string& name, at::ScalarType dtype, const comm::Group& all,
                                       int64_t num_groups = 1, const std::vector<topology::DimShard>& groups = {});
  // Uses the history of another product with the same weight.
  void share_history(std::shared_ptr<Buffer> history) { history_ = std::move(history); }
  // x [.., columns] or [groups, rows, columns], whose leading dimensions are rows. Returns the rounded values in the
  // same shape; x itself without low precision. Rows after the last group are unspecified.
  // Collective over the shards of the operand with recipes tensorwise and nvfp4.
  at::Tensor round(const at::Tensor& x, Operand operand, SumOver sum, const RoundOptions& options = {}) const;
  // Whether products are made of codes (precision.fp8_products), by encode() and scaled_product().
  bool encodes() const { return rounds() && precision_.fp8_products == config::Fp8Products::library; }
  // Whether the operand is multiplied as codes with a factor for each group of rows (scaled_grouped_product()).
  bool encodes_groups(Operand operand) const;
  // Whether products of groups of rows of this dtype multiply codes in bf16.
  bool has_bf16_codes(at::ScalarType of_x) const;
  // The codes of x [.., columns] as a matrix, in `out` if it is defined. Collective as round(). nvfp4: throws
  // base::Error("config") unless `columns` are whole bytes of the library's products.
  Codes encode(const at::Tensor& x, Operand operand, SumOver sum, const RoundOptions& options = {},
               Codes out = {}) const;
  // The codes of x [.., columns] as a matrix without groups, in `out` if it is defined. Both are written in one pass,
  // except by nvfp4, which finds its own magnitudes. Collective as round(), unless options.magnitude is defined.
  MatrixCodes encode_matrix(const at::Tensor& x, Operand operand, MatrixUses uses, const RoundOptions& options = {},
                            MatrixCodes out = {}) const;
  // Uninitialized codes for encode_matrix().
  MatrixCodes make_matrix_codes(at::IntArrayRef sizes, at::Device device, Operand operand, MatrixUses uses) const;
  // Uninitialized codes of a tensor [.., columns], for encode().
  Codes make_codes(at::IntArrayRef sizes, at::Device device, Operand operand, SumOver sum,
                   const RoundOptions& options) const;
  // Whether a weight can be encoded shard by shard (precision.fp8_param_gather). Blocks must not contain rows of two
  // matrices.
  bool encodes_shards(at::IntArrayRef sizes) const;
  // Number of factors of a weight: [matrices] factors, or [matrices, row blocks, column blocks].
  int64_t count_factors(const WeightShard& shard) const;
  // Writes the largest magnitude of the shard's elements with each factor, 0 without elements.
  void find_magnitudes(const at::Tensor& magnitudes, const WeightShard& shard) const;
  // Writes the shard's codes, and all factors to `decode`. `magnitudes` are those of all shards; with delayed scales,
  // the history replaces them.
  void encode(const WeightShard& shard, const at::Tensor& magnitudes, const at::Tensor& decode) const;
  // The gathered codes [.., columns] of a weight with these factors.
  Codes gathered_codes(const WeightShard& shard, const at::Tensor& codes, const at::Tensor& decode) const;
  // RoundOptions::counts for a shard that was encoded with `decode`.
  void count(const WeightShard& shard, const at::Tensor& magnitudes, const at::Tensor& decode) const;
  const std::vector<comm::Group>& shards(Operand operand) const { return shards_[static_cast<size_t>(operand)]; }
  // Whether the rounded weight is the same for both of its products.
  bool shares_weight() const;
  // Dtype of the result of round().
  at::ScalarType result_type(at::ScalarType of_x) const;
  // Whether the scales of operands come from earlier steps.
  bool delays_scales() const { return recipe_ == config::Recipe::delayed; }
  // Throws base::Error("config") unless every shard of the weight `name` consists of whole blocks. `sizes`: numbers
  // of consecutive features in this rank's shard.
  void check_shards(const std::string& name, const std::vector<int64_t>& sizes) const;

 private:
  kernels::RoundShape shape(Operand operand, SumOver sum) const;
  bool writes_pairs() const { return recipe_ == config::Recipe::nvfp4; }
  bool rounds_randomly() const { return writes_pairs() && precision_.fp4_stochastic_rounding; }
  kernels::RoundingNoise noise(Operand operand, SumOver sum, const DropoutMask& positions) const;
  // x, rotated if the product requires it.
  at::Tensor rotate(const at::Tensor& x, Operand operand, SumOver sum, const at::Tensor& counts,
                    const kernels::RoundShape& shape) const;
  template <class T>
  at::Tensor own_magnitudes(const at::Tensor& x, const at::Tensor& counts, const kernels::RoundShape& shape) const;
  template <class T>
  at::Tensor magnitudes(const at::Tensor& x, Operand operand, const at::Tensor& rows,
                        const kernels::RoundShape& shape, bool counts) const;

  kernels::ShardShape block_shape(const WeightShard& shard) const;
  at::Tensor decoded(const WeightShard& shard, const at::Tensor& decode) const;
  at::Tensor make_one_group(const RowGroups& groups, kernels::RoundShape& call) const;
  // `size` consecutive elements of a matrix that has one factor.
  kernels::RoundShape range_shape(int64_t size) const;
  at::Tensor used_magnitudes(const at::Tensor& magnitudes) const;

  // An operand before and after its rounding, with the arguments of the kernel.
  struct Measured {
    at::Tensor x, rounded, magnitudes, counts;
    kernels::RoundShape shape;
  };
  bool is_measured() const { return meter_ != nullptr && meter_->measures(); }
  template <class T>
  void measure(Operand operand, const Measured& given) const;

  config::Precision precision_;
  std::string module_;
  config::Recipe recipe_ = config::Recipe::none;
  device::Target target_;
  std::array<std::vector<comm::Group>, 3> shards_;
  std::shared_ptr<Buffer> history_;
  uint64_t key_ = 0;                      // of stochastic rounding
  kernels::RoundingNoise columns_;        // without positions
  std::shared_ptr<RoundingMeter> meter_;  // null: operands are not measured
  int64_t meter_row_ = 0;
};

}  // namespace metroplex::nn
