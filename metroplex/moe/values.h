// Names of what passes between the segments of a layer of experts (nn/value.h). T: tokens of this rank, s (/tp) * b,
// in the order of the rows of hidden_states; k: moe_router_topk; R: rows for the local experts, at least as many as
// came.
#pragma once

namespace metroplex::moe {

inline constexpr const char* kInput = "moe_input";            // [s (/tp), b, h]: behind the norm
inline constexpr const char* kTopExperts = "top_experts";     // [T, k] int64: chosen experts; -1: dropped
inline constexpr const char* kTopProbs = "top_probs";         // [T, k] at least fp32; of what was dropped 0
inline constexpr const char* kRows = "expert_rows";           // [R, h]: by local expert; behind the last one, padding
inline constexpr const char* kRowProbs = "expert_row_probs";  // [R], of kTopProbs' type
inline constexpr const char* kRowCounts = "expert_row_counts";  // [local experts] int64
inline constexpr const char* kSharedOutput = "shared_output";   // [s (/tp), b, h]: of the shared expert
inline constexpr const char* kRowOutput = "expert_output";      // [R, h]; summands over etp

}  // namespace metroplex::moe
