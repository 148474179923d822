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
  int64_t chunk = 0;

  int64_t v_head_dim() const { return dv == 0 ? d : dv; }
};

inline std::string case_name(const AttentionCase& test_case) {
  return base::concat("s ", test_case.s, " b ", test_case.b, " heads ", test_case.heads, "/", test_case.groups, " d ",
                      test_case.d, " dv ", test_case.v_head_dim(), " dropout ", test_case.dropout, " documents ",
                      test_case.documents.size(), " window ", test_case.window, " cap ", test_case.softcap, " chunk ",
                      test_case.chunk);
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
    // Chunks below and above both sizes of blocks, and above the sequence.
    for (const int64_t chunk : {1, 7, 128, 200, 257, 1000}) {
      all.push_back({300, 1, 4, 2, 8, dropout, {}, 0, -1, 0, chunk});
      all.push_back({300, 1, 2, 1, 8, dropout, {3, 150, 7}, 3, -1, 1.5, chunk});
    }
    all.push_back({129, 2, 3, 1, 5, dropout, {}, 0, -1, 0.7});
    all.push_back({11, 2, 4, 2, 7, dropout, {1, 2, 200}, 0, 3, 2.0});
  }
  all.push_back({0, 2, 2, 2, 8, 0.3, {}});
  all.push_back({5, 0, 2, 2, 8, 0.3, {}});
  return all;
}

inline nn::Microbatch make_batch(const AttentionCase& test_case) {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(4, at::arange(test_case.b, at::kLong) + 9);
  if (test_case.documents.empty()) return batch;
  std::vector<int64_t> ids;
  for (int64_t id = 0; static_cast<int64_t>(ids.size()) < test_case.s; ++id)
    ids.insert(ids.end(),
               static_cast<size_t>(test_case.documents[static_cast<size_t>(id) % test_case.documents.size()]), id);
  ids.resize(static_cast<size_t>(test_case.s));
  batch.documents.ids = at::tensor(ids, at::kLong).expand({test_case.b, test_case.s}).contiguous();
  return batch;
}

// Views into a tensor of all heads, as in an attention layer; values with another head size have their own tensor.
inline nn::CoreInputs inputs(const AttentionCase& test_case, at::ScalarType dtype) {
  const int64_t each = test_case.heads / test_case.groups;
  const at::Tensor fused = sample({test_case.s, test_case.b, test_case.groups, each + 2, test_case.d}, 5, dtype);
  const at::Tensor v =
      test_case.v_head_dim() == test_case.d
          ? fused.select(3, each + 1)
          : sample({test_case.s, test_case.b, test_case.groups, 2, test_case.v_head_dim()}, 6, dtype).select(3, 1);
  return {fused.narrow(3, 0, each).reshape({test_case.s, test_case.b, test_case.heads, test_case.d}),
          fused.select(3, each), v};
}
inline at::Tensor make_gradient(const AttentionCase& test_case, at::ScalarType dtype) {
  return sample({test_case.s, test_case.b, test_case.heads, test_case.v_head_dim()}, 8, dtype);
}
inline nn::CoreSpec make_spec(const AttentionCase& test_case) {
  nn::CoreSpec spec = core_spec(inputs(test_case, at::kDouble), test_case.dropout, 2);
  spec.dropout.layer = 3;
  spec.window = test_case.window, spec.softcap = test_case.softcap;
  spec.chunk = test_case.chunk;
  return spec;
}

// Relative to the largest value, or to 1 if gradients cancel. Sums have at most 300 * 3 terms of the size of the
// result, each off by some units in the last place. In fp32 the exponential is good to 2 units. Half types round
// probabilities, their gradients and the results once each.
inline double get_tolerance(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 3 * 0x1p-8;
  if (dtype == at::kHalf) return 3 * 0x1p-11;
  return dtype == at::kFloat ? 1e-5 : 2e-13;
}

}  // namespace metroplex::test
