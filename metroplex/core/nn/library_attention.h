// Core attention on a GPU by libtorch's operators (fused_attention.h), selected by the table in config/attention.h.
// Masks that an operator supports take one call. Masks over arbitrary positions, as in context parallelism, take
// several calls (attention_blocks.h), joined by their logsumexp; these require half types. Rows are first sorted by
// position. Forward and backward make the same choice.
#pragma once

#include <optional>
#include <vector>

#include "nn/core_attention.h"
#include "nn/fused_attention.h"

namespace metroplex::nn {

// Same contract as attend() and attend_backward(). They return nullopt if no operator supports the case.
std::optional<CoreResult> library_attention(const CoreInputs& in, const CoreCall& call);
std::optional<CoreInputs> library_attention_backward(const at::Tensor& dout, const CoreInputs& in,
                                                     const CoreResult& result, const CoreCall& call);

// One call of an operator on ranges of query and key rows, both sorted by position. The queries of a call either
// all occur in earlier calls, or all come after the queries of those calls.
struct LibraryCall {
  IndexRange queries, keys;
  FusedSpec spec;
  at::Tensor hidden = {};  // BlockDocuments::hidden; undefined: no hidden rows
};
using LibraryCalls = std::vector<LibraryCall>;
CoreResult attention_by_calls(const CoreInputs& in, const CoreCall& call, const LibraryCalls& calls);
CoreInputs attention_by_calls_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                       const CoreCall& call, const LibraryCalls& calls);

}  // namespace metroplex::nn
