// Cases for our implementations of core attention: masks, dropout, grouped heads, odd lengths.
#pragma once

#include "nn/plain_attention.h"

namespace metroplex::test {

struct AttentionCase {
  int64_t s, b, heads, groups, d;
  double dropout;
  std::vector<int64_t> documents;  // lengths; empty: no ids
  int64_t dv = 0;                  // 0: d
  int64_t window = -1;
  double softcap = 0;

  int64_t v_head_dim() const { return dv == 0 ? d : dv; }
};

inline std::string name_of(const AttentionCase& c) {
  return base::concat("s ", c.s, " b ", c.b, " heads ", c.heads, "/", c.groups, " d ", c.d, " dv ", c.v_head_dim(),
                      " dropout ", c.dropout, " documents ", c.documents.size(), " window ", c.window, " cap ",
                      c.softcap);
}

// Odd sizes, below and above the blocks of 128 queries and 256 keys.
inline std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> all;
  for (const double dropout : {0.0, 0.3}) {
    for (const std::vector<int64_t>& documents : {std::vector<int64_t>{}, {1, 2, 200}, {3, 150, 7}}) {
      all.push_back({300, 1, 4, 2, 8, dropout, documents});
      for (const int64_t s : {1, 11, 129}) {
        all.push_back({s, 2, 4, 4, 8, dropout, documents});
        all.push_back({s, 1, 6, 2, 7, dropout, documents});
        all.push_back({s, 3, 3, 1, 5, dropout, documents});
        all.push_back({s, 2, 4, 2, 8, dropout, documents, 3});
        all.push_back({s, 1, 3, 3, 3, dropout, documents, 5});
      }
    }
  }
  for (const auto& [d, dv] : {std::pair{300, 300}, std::pair{300, 7}, std::pair{7, 300}})
    all.push_back({40, 1, 1, 1, d, 0.3, {}, dv});  // wider than a block of a product
  // Windows within a block of keys, of exactly one, and of more; capped scores, of which the largest is about 3.
  for (const double dropout : {0.0, 0.3}) {
    for (const int64_t window : {0, 1, 40, 255, 256, 290, 1000}) {
      all.push_back({300, 1, 4, 2, 8, dropout, {}, 0, window});
      all.push_back({300, 1, 2, 1, 8, dropout, {3, 150, 7}, 3, window, 1.5});
    }
    all.push_back({129, 2, 3, 1, 5, dropout, {}, 0, -1, 0.7});
    all.push_back({11, 2, 4, 2, 7, dropout, {1, 2, 200}, 0, 3, 2.0});
  }
  all.push_back({0, 2, 2, 2, 8, 0.3, {}});
  all.push_back({5, 0, 2, 2, 8, 0.3, {}});
  return all;
}

inline nn::Microbatch batch_of(const AttentionCase& c) {
  nn::Microbatch batch;
  batch.sample_counters = nn::counters_of_samples(4, at::arange(c.b, at::kLong) + 9);
  if (c.documents.empty()) return batch;
  std::vector<int64_t> ids;
  for (int64_t id = 0; static_cast<int64_t>(ids.size()) < c.s; ++id)
    ids.insert(ids.end(), static_cast<size_t>(c.documents[static_cast<size_t>(id) % c.documents.size()]), id);
  ids.resize(static_cast<size_t>(c.s));
  batch.document_ids = at::tensor(ids, at::kLong).expand({c.b, c.s}).contiguous();
  return batch;
}

// Views into a tensor of all heads, as in an attention layer; values with another head size have their own tensor.
inline nn::CoreInputs inputs(const AttentionCase& c, at::ScalarType dtype) {
  const int64_t each = c.heads / c.groups;
  const at::Tensor fused = sample({c.s, c.b, c.groups, each + 2, c.d}, 5, dtype);
  const at::Tensor v = c.v_head_dim() == c.d ? fused.select(3, each + 1)
                                             : sample({c.s, c.b, c.groups, 2, c.v_head_dim()}, 6, dtype).select(3, 1);
  return {fused.narrow(3, 0, each).reshape({c.s, c.b, c.heads, c.d}), fused.select(3, each), v};
}
inline at::Tensor gradient_of(const AttentionCase& c, at::ScalarType dtype) {
  return sample({c.s, c.b, c.heads, c.v_head_dim()}, 8, dtype);
}
inline nn::CoreSpec spec_of(const AttentionCase& c) {
  nn::CoreSpec spec = core_spec(inputs(c, at::kDouble), c.dropout, 2);
  spec.dropout.layer = 3;
  spec.window = c.window, spec.softcap = c.softcap;
  return spec;
}

// Relative to the largest value, or to 1 if gradients cancel. Sums have at most 300 * 3 terms of the size of the
// result, each off by some units in the last place. In fp32 the exponential is good to 2 units. Half types round
// probabilities, their gradients and the results once each.
inline double tolerance_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 3 * 0x1p-8;
  if (dtype == at::kHalf) return 3 * 0x1p-11;
  return dtype == at::kFloat ? 1e-5 : 2e-13;
}

}  // namespace metroplex::test
