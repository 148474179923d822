#include "nn/segment.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::nn {
namespace {

std::vector<Param*> segment_params(Segment& segment) {
  std::vector<Param*> params;
  segment.collect_params(params);
  return params;
}

void append_unique(std::vector<Param*>& params, const Block& block) {
  for (const auto& segment : block.segments) {
    for (Param* param : segment_params(*segment)) {
      if (std::find(params.begin(), params.end(), param) == params.end()) params.push_back(param);
    }
  }
}

}  // namespace

at::Tensor SegmentContext::once(const std::function<at::Tensor()>& compute) {
  if (is_recompute) {
    MPX_ASSERT(memo != nullptr && memo->next < memo->values.size(),
               "SegmentContext::once was called more often in the recomputation than in the first forward");
    return memo->values[memo->next++];
  }
  at::Tensor value = compute();
  if (memo != nullptr) memo->values.push_back(value);
  return value;
}

std::vector<Param*> list_params(const Block& block) {
  std::vector<Param*> params;
  append_unique(params, block);
  return params;
}

std::vector<Param*> list_params(const Blocks& blocks) {
  std::vector<Param*> params;
  for (const Block& block : blocks) append_unique(params, block);
  return params;
}

void count_uses(const std::vector<const Blocks*>& stages) {
  for (const Blocks* blocks : stages) {
    for (Param* param : list_params(*blocks)) param->uses_per_microbatch = 0;
  }
  for (const Blocks* blocks : stages) {
    for (const Block& block : *blocks) {
      for (const auto& segment : block.segments) {
        for (Param* param : segment_params(*segment)) ++param->uses_per_microbatch;
      }
    }
  }
}

}  // namespace metroplex::nn
