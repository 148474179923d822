// Core attention of a GPU by libtorch's operators (fused_attention.h), as the table of config/attention.h says: in
// one call where the mask is one that they know, and of chosen rows, as context parallelism has them, in several
// without masks (attention_blocks.h) that are joined by their logsumexp, of half types. Rows are put in the order of
// their positions first. The same choice is made for forward and backward.
#pragma once

#include <functional>
#include <optional>

#include "config/attention.h"
#include "nn/core_attention.h"

namespace metroplex::nn {

// As attend() and attend_backward(); nothing where there is no operator for it.
std::optional<CoreResult> library_attention(const CoreInputs& in, const CoreCall& call);
std::optional<CoreInputs> library_attention_backward(const at::Tensor& dout, const CoreInputs& in,
                                                     const CoreResult& result, const CoreCall& call);

// What they call for chosen rows, whose positions the host knows: each block by the operator that is chosen for its
// numbers of queries and keys.
using OperatorOfBlock = std::function<config::AttentionBy(int64_t queries, int64_t keys)>;
CoreResult attention_by_blocks(const CoreInputs& in, const CoreCall& call, const OperatorOfBlock& by);
CoreInputs attention_by_blocks_backward(const at::Tensor& dout, const CoreInputs& in, const CoreResult& result,
                                        const CoreCall& call, const OperatorOfBlock& by);

}  // namespace metroplex::nn
