// Core attention of a GPU by libtorch's operators (fused_attention.h), as the table of config/attention.h says: in
// one call where the mask is one that they know, and of chosen rows, as context parallelism has them, in several
// (attention_blocks.h) that are joined by their logsumexp, of half types. Rows are put in the order of their
// positions first. The same choice is made for forward and backward.
#pragma once

#include <optional>
#include <vector>

#include "nn/core_attention.h"
#include "nn/fused_attention.h"

namespace metroplex::nn {

// As attend() and attend_backward(); nothing where there is no operator for it.
std::optional<CoreResult> library_attention(const CoreInputs& in, const CoreCall& call);
std::optional<CoreInputs> library_attention_backward(const at::Tensor& dout, const CoreInputs& in,
                                                     const CoreResult& result, const CoreCall& call);

// One call of an operator: of rows of the queries and of the keys, both in the order of their positions. Queries of a
// call have either all been in calls before it, or none of them, nor any behind them.
struct LibraryCall {
  RowRun queries, keys;
  FusedSpec spec;
  at::Tensor hidden = {};  // BlockDocuments::hidden; undefined: none
};
using LibraryCalls = std::vector<LibraryCall>;
CoreResult attention_by_calls(const CoreInputs& in, const CoreCall& call, const LibraryCalls& calls);
CoreInputs attention_by_calls_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call, const LibraryCalls& calls);

}  // namespace metroplex::nn
