// attention_operators [cuda|cpu] [repetitions]: core attention, forward and backward, by each operator that a GPU can
// use: flash attention, cuDNN's and our own kernels. Cases are bf16 with a causal mask, and context-parallel blocks
// without a mask. The operators alternate. Prints Markdown; the table of choices (config/attention.h) should select
// the fastest supported operator. On a CPU only our kernel runs.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/attention.h"
#include "device/device.h"
#include "nn/attention_by_products.h"
#include "nn/blocked_attention.h"
#include "nn/fused_attention.h"
#include "timing.h"

namespace {

using namespace metroplex;
using config::AttentionBy;

struct Case {
  const char* name;
  int64_t b, s, heads, groups, d, dv;
  int64_t documents = 0;  // per sample; 0: no document ids
  double dropout = 0;
  int64_t keys = 0;  // 0: s, causal; else this many without a mask, as in a block of context parallelism
};
constexpr Case kCases[] = {{"GPT-2", 8, 1024, 12, 12, 64, 64},
                           {"GPT-2, dropout", 8, 1024, 12, 12, 64, 64, 0, 0.1},
                           {"Llama 3 8B", 1, 8192, 32, 8, 128, 128},
                           {"Llama 3 8B, 16 documents", 1, 8192, 32, 8, 128, 128, 16},
                           {"DeepSeek-V3", 1, 4096, 16, 16, 192, 128},
                           {"Llama 3 8B, a hop to half of the keys", 1, 8192, 32, 8, 128, 128, 0, 0, 4096},
                           {"Llama 3 8B, a hop of half of the queries", 1, 4096, 32, 8, 128, 128, 0, 0, 8192}};
constexpr AttentionBy kOperators[] = {AttentionBy::flash, AttentionBy::cudnn, AttentionBy::own};
constexpr const char* kNames[] = {"flash", "cuDNN", "own"};

struct Operands {
  nn::CoreInputs in;
  at::Tensor dy;
  nn::CoreSpec spec;
  nn::Microbatch batch;
  bool block = false;
};

Operands make_operands(const Case& c, const device::Target& target, int64_t s) {
  const auto random = [&](int64_t rows, int64_t heads, int64_t d) {
    return at::randn({rows, c.b, heads, d}).to(at::kBFloat16).to(target.device);
  };
  const int64_t keys = c.keys > 0 ? c.keys * s / c.s : s;
  Operands operands{{random(s, c.heads, c.d), random(keys, c.groups, c.d), random(keys, c.groups, c.dv)},
                    random(s, c.heads, c.dv),
                    {},
                    {}};
  operands.spec.heads = c.heads, operands.spec.groups = c.groups, operands.spec.head_dim = c.d,
  operands.spec.v_head_dim = c.dv;
  operands.spec.softmax_scale = 1 / std::sqrt(static_cast<double>(c.d));
  operands.spec.target = target;
  operands.spec.dropout = {1, 0, nn::RandomSite::attention_probabilities, c.dropout, target};
  operands.batch.counters.samples = nn::make_sample_counters(0, at::arange(c.b, at::kLong)).to(target.device);
  operands.block = c.keys > 0;
  if (c.documents == 0) return operands;
  const int64_t each = (s + c.documents - 1) / c.documents;
  const at::Tensor ids = at::arange(s, at::kLong).div(each, "floor").expand({c.b, s}).contiguous();
  operands.batch.documents.offsets = nn::document_offsets(ids, 2 * c.documents).to(target.device);
  operands.batch.documents.ids = ids.to(target.device);
  return operands;
}

at::Tensor heads_first(const at::Tensor& x) { return x.permute({1, 2, 0, 3}); }

void run(const Operands& operands, AttentionBy by) {
  const nn::CoreCall call{operands.spec, {}, operands.batch};
  if (by == AttentionBy::own && !operands.spec.target.gpu()) {
    nn::blocked_attention_backward(operands.dy, operands.in, nn::blocked_attention(operands.in, call), call);
    return;
  }
  if (by == AttentionBy::own) {
    nn::attention_by_products_backward(operands.dy, operands.in, nn::attention_by_products(operands.in, call), call);
    return;
  }
  const nn::FusedInputs in{heads_first(operands.in.q), heads_first(operands.in.k), heads_first(operands.in.v)};
  const nn::FusedSpec spec{by,
                           !operands.block,
                           operands.spec.softmax_scale,
                           -1,
                           {operands.batch.documents.offsets, operands.batch.documents.offsets}};
  const auto [out, logsumexp] = nn::fused_attention(operands.spec.target, in, spec);
  nn::fused_attention_backward(operands.spec.target, in, {out, logsumexp, heads_first(operands.dy)}, spec);
}

// Milliseconds of alternating runs; empty if the operator does not support the case, with its message.
struct Times {
  std::vector<double> all;
  std::string refusal;
};

void measure(const Case& c, const device::Target& target, int repetitions) {
  const Operands operands = make_operands(c, target, target.gpu() ? c.s : 64);
  config::AttentionCase attention_case{config::ParamsDtype::bf16, c.d, c.dv};
  attention_case.documents = c.documents > 0, attention_case.dropout = c.dropout > 0;
  attention_case.capability = target.gpu() ? device::compute_capability() : 90;
  attention_case.queries = c.s, attention_case.keys = c.keys > 0 ? c.keys : c.s;
  Times times[std::size(kOperators)];
  for (int turn = -2; turn < repetitions; ++turn) {
    for (size_t i = 0; i < std::size(kOperators); ++i) {
      if (!times[i].refusal.empty()) continue;
      if (!target.gpu() && kOperators[i] != AttentionBy::own) times[i].refusal = "takes a GPU";
      if (kOperators[i] == AttentionBy::cudnn && c.documents > 0) times[i].refusal = "has no documents here";
      if (kOperators[i] != AttentionBy::own && c.dropout > 0) times[i].refusal = "has no dropout by positions";
      if (kOperators[i] == AttentionBy::own && c.keys > 0) times[i].refusal = "has positions instead";
      if (kOperators[i] == AttentionBy::flash && c.d != c.dv) times[i].refusal = "takes one head size";
      if (!times[i].refusal.empty()) continue;
      try {
        if (target.gpu()) device::synchronize();
        const auto start = bench::Clock::now();
        run(operands, kOperators[i]);
        if (target.gpu()) device::synchronize();
        if (turn >= 0) times[i].all.push_back(bench::seconds_since(start) * 1e3);
      } catch (const c10::Error& error) {
        times[i].refusal = error.what_without_backtrace();
        times[i].refusal = times[i].refusal.substr(0, times[i].refusal.find('\n'));
      }
    }
  }
  double best = 1e30;
  for (const Times& of : times) best = of.all.empty() ? best : std::min(best, bench::median(of.all));
  for (size_t i = 0; i < std::size(kOperators); ++i) {
    const bool chosen = config::gpu_attention(attention_case).by == kOperators[i];
    std::printf("| %s | %s%s | ", c.name, kNames[i], chosen ? " (chosen)" : "");
    if (times[i].all.empty()) std::printf("| | %s |\n", times[i].refusal.c_str());
    else std::printf("%.3f | %.2f | |\n", bench::median(times[i].all), bench::median(times[i].all) / best);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const std::string device = argc > 1 ? argv[1] : "cuda";
  if (device == "cuda" && device::device_count() == 0) {
    std::fprintf(stderr, "attention_operators: there is no GPU; give cpu\n");
    return 2;
  }
  const at::NoGradGuard no_grad;
  const device::Target target{at::Device(device == "cuda" ? at::kCUDA : at::kCPU)};
  std::printf("| case | operator | ms | times the quickest | |\n| --- | --- | --- | --- | --- |\n");
  for (const Case& c : kCases) measure(c, target, argc > 2 ? std::atoi(argv[2]) : 20);
  return 0;
}
