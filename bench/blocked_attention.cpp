// Core attention, forward and backward: our blocked kernel, whole score matrices in fp32 (with the same dropout
// mask), and at::scaled_dot_product_attention with autograd. The last has a fused operator for causal and additive
// masks, but none for dropout. The variants alternate.
//   blocked_attention [repetitions] [threads]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "nn/blocked_attention.h"
#include "nn/dropout.h"
#include "nn/wide.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Clock;

struct Case {
  int64_t b, heads, groups, s, d;
  at::ScalarType dtype;
  double dropout;
  int64_t document;  // tokens per document; 0: no ids
};

struct Operands {
  nn::CoreInputs in;
  at::Tensor dy;
  nn::CoreSpec spec;
  nn::CorePositions positions;
  nn::Microbatch batch;
};

Operands make_operands(const Case& c) {
  const auto random = [&](int64_t heads) { return at::randn({c.s, c.b, heads, c.d}).to(c.dtype); };
  Operands operands{{random(c.heads), random(c.groups), random(c.groups)}, random(c.heads), {}, {}, {}};
  operands.spec.heads = c.heads, operands.spec.groups = c.groups,
  operands.spec.head_dim = operands.spec.v_head_dim = c.d;
  operands.spec.softmax_scale = 1 / std::sqrt(static_cast<double>(c.d));
  operands.spec.dropout = {1, 0, nn::RandomSite::attention_probabilities, c.dropout, {}};
  operands.batch.counters.samples = nn::make_sample_counters(0, at::arange(c.b, at::kLong));
  if (c.document > 0) {
    operands.batch.documents.ids =
        at::arange(c.s, at::kLong).div(c.document, "floor").expand({c.b, c.s}).contiguous();
  }
  return operands;
}

void blocked(const Operands& operands) {
  const at::NoGradGuard no_grad;
  const nn::CoreCall call{operands.spec, operands.positions, operands.batch};
  nn::blocked_attention_backward(operands.dy, operands.in, nn::blocked_attention(operands.in, call), call);
}

at::Tensor heads_first(const at::Tensor& x) { return x.permute({1, 2, 0, 3}); }

// [b or 1, 1, s, s] bool, true = masked.
at::Tensor hidden(const Operands& operands) {
  const int64_t s = operands.in.q.size(0);
  at::Tensor hidden = at::ones({s, s}, at::kBool).triu_(1).view({1, 1, s, s});
  const at::Tensor& ids = operands.batch.documents.ids;
  return ids.defined() ? hidden.logical_or(ids.unsqueeze(2).ne(ids.unsqueeze(1)).unsqueeze(1)) : hidden;
}

void drop(const at::Tensor& x, const Operands& operands) {
  if (!operands.spec.dropout.active(operands.batch)) return;
  const nn::DropoutMask mask =
      nn::probability_mask({x.size(0), x.size(1), x.size(2), x.size(3)}, operands.spec.dropout, {}, operands.batch);
  float* const data = x.mutable_data_ptr<float>();
  kernels::bias_dropout_add<float, float>({data, nullptr, nullptr, data}, mask.shape);
}

void whole(const Operands& operands) {
  const at::NoGradGuard no_grad;
  const int64_t each = operands.in.q.size(2) / operands.in.k.size(2);
  const auto shared = [&](const at::Tensor& x) { return heads_first(nn::to_wide(x).repeat_interleave(each, 2)); };
  const at::Tensor q = heads_first(nn::to_wide(operands.in.q)), k = shared(operands.in.k), v = shared(operands.in.v),
                   dy = heads_first(nn::to_wide(operands.dy));
  at::Tensor p = at::matmul(q, k.transpose(2, 3)).mul_(operands.spec.softmax_scale);
  p.masked_fill_(hidden(operands), -std::numeric_limits<float>::infinity());
  p = at::softmax(p, -1);
  const at::Tensor dropped = p.clone();
  drop(dropped, operands);
  at::matmul(dropped, v).to(operands.in.q.scalar_type());
  at::Tensor dp = at::matmul(dy, v.transpose(2, 3));
  drop(dp, operands);
  at::matmul(dropped.transpose(2, 3), dy);
  const at::Tensor ds = at::_softmax_backward_data(dp, p, -1, at::kFloat).mul_(operands.spec.softmax_scale);
  at::matmul(ds, k);
  at::matmul(ds.transpose(2, 3), q);
}

void run_libtorch(const Operands& operands) {
  const auto leaf = [](const at::Tensor& x) { return heads_first(x).detach().requires_grad_(true); };
  const at::Tensor q = leaf(operands.in.q), k = leaf(operands.in.k), v = leaf(operands.in.v);
  const bool documents = operands.batch.documents.ids.defined();
  const auto mask = documents ? std::optional<at::Tensor>(hidden(operands).logical_not()) : std::nullopt;
  const at::Tensor out =
      at::scaled_dot_product_attention(q, k, v, mask, operands.spec.dropout.probability, !documents, std::nullopt,
                                       operands.in.q.size(2) != operands.in.k.size(2));
  torch::autograd::grad({out}, {q, k, v}, {heads_first(operands.dy)});
}

void measure(const Case& c, int repetitions) {
  const Operands operands = make_operands(c);
  const std::function<void(const Operands&)> ways[] = {blocked, whole, run_libtorch};
  std::vector<double> seconds[3];
  for (int i = 0; i <= repetitions; ++i) {
    for (size_t way = 0; way < 3; ++way) {
      const Clock::time_point start = Clock::now();
      ways[way](operands);
      if (i > 0) seconds[way].push_back(bench::seconds_since(start));
    }
  }
  double least[3], middle[3];
  for (size_t way = 0; way < 3; ++way) {
    least[way] = *std::min_element(seconds[way].begin(), seconds[way].end()) * 1e3;
    middle[way] = bench::median(seconds[way]) * 1e3;
  }
  std::printf("| %ld x %ld/%ld x %ld x %ld %s | %.1f | %ld | %.1f, %.1f | %.1f, %.1f | %.1f, %.1f | %.2f | %.2f |\n",
              c.b, c.heads, c.groups, c.s, c.d, c10::toString(c.dtype), c.dropout, c.document, least[0], middle[0],
              least[1], middle[1], least[2], middle[2], least[1] / least[0], least[2] / least[0]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  if (argc > 2) at::set_num_threads(std::atoi(argv[2]));
  std::printf("milliseconds, least and median, on %d threads\n\n", at::get_num_threads());
  std::printf(
      "| b x heads/groups x s x d | dropout | document | blocks | whole matrices | libtorch | whole / blocks | "
      "libtorch / blocks |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t s : {512, 2048}) {
      const int64_t heads = s == 512 ? 12 : 4;
      measure({2, heads, heads, s, 64, dtype, 0, 0}, repetitions);
      measure({2, heads, heads, s, 64, dtype, 0.1, 0}, repetitions);
      measure({2, heads, heads, s, 64, dtype, 0, 200}, repetitions);
      measure({2, heads, heads / 4, s, 64, dtype, 0.1, 200}, repetitions);
    }
  }
}
