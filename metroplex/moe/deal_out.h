// Routing by given loads: every token gets k different experts, and every expert the tokens that it is to have.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace metroplex::moe {

// How many of `tokens` tokens with k experts each go to every expert: `loads` themselves where they add up to tokens
// k and none is above `tokens`. Else in proportion to them, none above `tokens`, rounded by the largest remainder (of
// equal ones the lowest expert); what experts with a load cannot take, the others share. Loads are at least 0, k at
// most their number.
std::vector<int64_t> dealt_counts(const std::vector<int64_t>& loads, int64_t tokens, int64_t k);

// [tokens, k] int64 of counts [E] int64 that add up to tokens k, none above `tokens`: of the experts laid out one
// behind the other, each as often as it counts, token t takes places t, t + tokens, t + 2 tokens, ... No expert comes
// twice. Counts are read where they lie.
at::Tensor deal_out(const at::Tensor& counts, int64_t tokens, int64_t k);

}  // namespace metroplex::moe
