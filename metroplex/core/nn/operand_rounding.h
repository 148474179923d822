// Rounds operands of matrix products to 8 bits (precision.fp8_format), with the scales of NVIDIA's TransformerEngine.
// Rounded operands are multiplied in fp32 (fp64 in an fp64 run), in which the product of two of them is exact. The
// result is that of a product of the codes with fp32 sums.
//
//   recipe      values that share a factor                                   factor
//   delayed     as tensorwise, from the largest magnitudes of earlier steps  fp32
//   tensorwise  the microbatch's tensor on all ranks; an expert's rows       fp32
//   blockwise   1 x 128 along the sum; weights 128 x 128                     power of two
//   mxfp8       1 x 32 along the sum                                         power of two
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "config/precision.h"
#include "device/launch_point.h"
#include "kernels/round_blocks.h"
#include "nn/named_tensor.h"

namespace metroplex::nn {

enum class Operand { input, weight, gradient };
// The dimension of a matrix that a product sums over.
enum class SumOver { rows, columns };

// Consecutive rows that never share a block. `counts` [groups] int64 on the device; undefined: equal numbers of rows.
struct RowGroups {
  int64_t groups = 1;
  at::Tensor counts = {};
};

class OperandRounding {
 public:
  OperandRounding() = default;  // returns operands unchanged
  // The rounding of the layer <module>. shards: for each operand, the groups of ranks that hold parts of one tensor.
  OperandRounding(const config::Precision& precision, const std::string& module, const device::Target& target,
                  std::array<std::vector<comm::Group>, 3> shards);

  bool rounds() const { return recipe_ != config::Recipe::none; }
  bool rounds_weight_gradients() const { return rounds() && precision_.fp8_wgrad; }
  // With delayed scales: creates and returns the history of magnitudes <name>.operand_magnitudes [1 + length, 3,
  // groups], else null. Row 0 has the magnitudes in use, the others those of the last steps, the newest first.
  // Columns are operands. `all`: the ranks whose operands share the history; they call Buffer::apply together.
  // `groups`: the split of the experts, if any.
  std::shared_ptr<Buffer> make_history(const std::string& name, at::ScalarType dtype, const comm::Group& all,
                                       int64_t num_groups = 1, const std::vector<topology::DimShard>& groups = {});
  // x [.., columns] or [groups, rows, columns], whose leading dimensions are rows. Returns the rounded values in the
  // same shape, in at least fp32; x itself without low precision. Rows after the last group are unspecified.
  // Collective over the shards of the operand with recipe tensorwise. `counts`: adds the magnitude to the history.
  at::Tensor round(const at::Tensor& x, Operand operand, SumOver sum, const RowGroups& groups = {},
                   bool counts = false) const;
  // Throws base::Error("config") unless every shard of the weight `name` consists of whole blocks. `sizes`: numbers
  // of consecutive features in this rank's shard.
  void check_shards(const std::string& name, const std::vector<int64_t>& sizes) const;

 private:
  kernels::RoundShape shape(Operand operand, SumOver sum) const;
  template <class T>
  at::Tensor own_magnitudes(const at::Tensor& x, const RowGroups& groups, const kernels::RoundShape& shape) const;
  template <class T>
  at::Tensor magnitudes(const at::Tensor& x, Operand operand, const RowGroups& groups,
                        const kernels::RoundShape& shape, bool counts) const;

  config::Precision precision_;
  config::Recipe recipe_ = config::Recipe::none;
  device::Target target_;
  std::array<std::vector<comm::Group>, 3> shards_;
  std::shared_ptr<Buffer> history_;
};

}  // namespace metroplex::nn
