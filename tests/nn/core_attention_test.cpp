// Core attention with another head size for values against the formula in float64. Covers the saved tensors, equal
// bits of a recomputed core, and joining blocks of keys as in a ring.
#include "nn/core_attention.h"

#include <map>

#include "config/attention.h"
#include "device/device.h"
#include "device/memory_meter.h"
#include "nn/kv_cache.h"
#include "nn/plain_attention.h"
#include "support/folder.h"

namespace metroplex::test::core_attention_test {
namespace {

struct Heads {
  int64_t heads, groups, d, dv;
};
// Smaller, larger, odd; one query head per group and several.
constexpr Heads kHeads[] = {{4, 4, 8, 3}, {4, 2, 3, 5}, {3, 1, 5, 3}, {2, 2, 4, 16}, {6, 2, 24, 7}, {1, 1, 1, 2}};

constexpr int64_t kBatch = 2;

std::string case_name(const Heads& heads) {
  return base::concat(heads.heads, "/", heads.groups, " heads of ", heads.d, " and ", heads.dv);
}

nn::CoreInputs inputs(const Heads& heads, int64_t queries, int64_t keys, at::ScalarType dtype) {
  return {sample({queries, kBatch, heads.heads, heads.d}, 5, dtype),
          sample({keys, kBatch, heads.groups, heads.d}, 6, dtype),
          sample({keys, kBatch, heads.groups, heads.dv}, 7, dtype)};
}
at::Tensor gradient(const Heads& heads, int64_t queries, at::ScalarType dtype) {
  return sample({queries, kBatch, heads.heads, heads.dv}, 8, dtype);
}

nn::Microbatch make_batch(int64_t document_length, int64_t whole) {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(4, at::tensor({9, 11}, at::kLong));
  if (document_length > 0)
    batch.documents.ids =
        at::arange(whole, at::kLong).div(document_length, "floor").expand({kBatch, whole}).contiguous();
  return batch;
}

// Sums of some hundred terms of the size of the result; half types round probabilities, their gradients and the
// results once each.
double get_tolerance(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 3 * 0x1p-8;
  return dtype == at::kFloat ? 1e-5 : 2e-13;
}

TEST(CoreAttention, IsTheFormulaWithValuesOfAnotherHeadSize) {
  for (const Heads& heads : kHeads) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const double dropout : {0.0, 0.3}) {
        for (const int64_t document : {0, 5}) {
          SCOPED_TRACE(testing::Message()
                       << case_name(heads) << " " << dtype << " dropout " << dropout << " documents of " << document);
          const int64_t s = 21;
          const nn::CoreInputs in = inputs(heads, s, s, dtype);
          const nn::CoreSpec spec = core_spec(in, dropout, 2);
          const nn::Microbatch batch = make_batch(document, s);
          const at::Tensor dy = gradient(heads, s, dtype);
          expect_attended(run_attention(in, {spec, {}, batch}, dy), plain_attention(in, {spec, {}, batch}, dy),
                          get_tolerance(dtype));
        }
      }
    }
  }
}

TEST(CoreAttention, TakesTheScaleThatItIsGiven) {
  const nn::CoreInputs in = inputs(kHeads[0], 9, 9, at::kDouble);
  const at::Tensor dy = gradient(kHeads[0], 9, at::kDouble);
  nn::CoreSpec spec = core_spec(in);
  const AttentionResult usual = run_attention(in, {spec, {}, {}}, dy);
  spec.softmax_scale = 1.7;
  const AttentionResult got = run_attention(in, {spec, {}, {}}, dy);
  expect_attended(got, plain_attention(in, {spec, {}, {}}, dy), get_tolerance(at::kDouble));
  EXPECT_GT(largest(got.out - usual.out), 1e-3);
}

// An additional score next to those of the keys; recompute gives the same bits.
TEST(CoreAttention, SinksAreAScoreWithoutAValue) {
  for (const Heads& heads : kHeads) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const bool learnable : {false, true}) {
        SCOPED_TRACE(testing::Message() << case_name(heads) << " " << dtype << " learnable " << learnable);
        const int64_t s = 21;
        const nn::CoreInputs in = inputs(heads, s, s, dtype);
        nn::CoreSpec spec = core_spec(in, 0.3, 2);
        spec.softmax = learnable ? config::SoftmaxType::learnable : config::SoftmaxType::off_by_one;
        spec.window = 6;
        const auto sinks = std::make_shared<nn::Param>(
            nn::make_param({"sinks", {heads.heads}, {}, nn::Init::normal}, layer_context({}, false, dtype)));
        give_main_grad({sinks.get()});
        const nn::Microbatch batch = make_batch(0, s);
        const at::Tensor dy = gradient(heads, s, dtype);
        const AttentionResult wanted =
            plain_attention(in, {spec, {}, batch}, dy, learnable ? sinks->data.to(at::kDouble) : at::Tensor());
        nn::SavePolicy recomputes;
        recomputes.recomputed = {nn::SavePoint::core_attn};
        for (const nn::SavePolicy& saving : {nn::SavePolicy(), recomputes}) {
          sinks->main_grad.zero_();
          const nn::CoreAttention core(spec, saving, learnable ? sinks : nullptr);
          nn::CoreSaved saved;
          const at::Tensor out = core.forward(in.q, in.k, in.v, {}, batch, &saved).x;
          const nn::CoreInputs gradients = core.backward(dy.flatten(2), saved);
          // Half types round the result once more.
          expect_attended({out.view(dy.sizes()), gradients.q, gradients.k, gradients.v}, wanted,
                          2 * get_tolerance(dtype));
          if (!learnable) continue;
          const double allowed = 2 * get_tolerance(dtype) * std::max(1.0, largest(wanted.dsinks)) *
                                 (dtype == at::kDouble ? 1 : std::sqrt(static_cast<double>(s * kBatch)));
          EXPECT_LE(largest(sinks->main_grad.to(at::kDouble) - wanted.dsinks), allowed);
          EXPECT_GT(largest(wanted.dsinks), 0.01);
        }
      }
    }
  }
}

// The last queries over all keys, token by token and several at once.
TEST(CoreAttention, ACacheHoldsKeysAndValuesOfTheirOwnSizes) {
  const int64_t s = 11;
  for (const Heads& heads : kHeads) {
    SCOPED_TRACE(case_name(heads));
    const nn::CoreInputs in = inputs(heads, s, s, at::kDouble);
    const nn::CoreSpec spec = core_spec(in);
    const nn::CoreAttention core(spec, {});
    const at::Tensor whole = plain_attention(in, {spec, {}, {}}, gradient(heads, s, at::kDouble)).out;
    nn::KvCache cache;
    for (const int64_t n : {3, 1, 1, 4, 2}) {
      const auto narrow_rows = [&](const at::Tensor& x) { return x.narrow(0, cache.length, n); };
      const nn::KvCache::Layer all = cache.append(7, narrow_rows(in.k), narrow_rows(in.v));
      EXPECT_TRUE(at::equal(all.v, in.v.narrow(0, 0, cache.length + n)));
      const nn::CorePositions positions{{cache.length, {}, 0}, {}};
      const at::Tensor q = narrow_rows(in.q);
      const at::Tensor out = core.forward(q, all.k, all.v, positions, {}, nullptr).x;
      EXPECT_EQ(out.sizes(), at::IntArrayRef({n, kBatch, heads.heads * heads.dv}));
      EXPECT_LT(relative_difference(out, narrow_rows(whole).flatten(2)), get_tolerance(at::kDouble));
      cache.length += n;
      const at::Tensor dy = gradient(heads, n, at::kDouble);
      const nn::CoreInputs part{q, all.k, all.v};
      expect_attended(run_attention(part, {spec, positions, {}}, dy),
                      plain_attention(part, {spec, positions, {}}, dy), get_tolerance(at::kDouble));
    }
  }
}

struct Saving {
  const char* name;
  bool recomputes, offloads;
};

nn::SavePolicy make_policy(const Saving& saving, const std::string& folder) {
  config::Memory memory;
  if (saving.offloads) {
    memory.offload_activations = "file";
    memory.offload_directory = folder;
  }
  nn::SavePolicy policy = nn::save_policy(memory, nn::make_activation_store(memory));
  if (saving.recomputes) policy.recomputed |= {nn::SavePoint::core_attn};
  return policy;
}

TEST(CoreAttention, ARecomputedOrOffloadedCoreGivesTheBitsOfOneThatIsKept) {
  const Folder folder;
  const int64_t s = 40;
  for (const Heads& heads : kHeads) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const nn::CoreSpec spec = core_spec(inputs(heads, s, s, dtype), 0.3, 2);
      const nn::Microbatch batch = make_batch(7, s);
      const at::Tensor dy = gradient(heads, s, dtype).flatten(2);
      const auto run = [&](const Saving& saving) {
        const nn::SavePolicy policy = make_policy(saving, folder.path());
        const nn::CoreAttention core(spec, policy);
        nn::CoreSaved saved;
        nn::SavedSet moved;
        at::Tensor out;
        {
          const nn::CoreInputs in = inputs(heads, s, s, dtype);
          if (policy.store) policy.store->begin();
          const nn::Input result = core.forward(in.q, in.k, in.v, {}, batch, &saved);
          if (policy.store) moved = policy.store->end();
          EXPECT_EQ(result.recomputed.defined(), saving.recomputes);
          if (result.recomputed.defined()) { EXPECT_TRUE(at::equal(result.recomputed.get(), result.x)); }
          out = result.x;
        }
        const nn::CoreInputs gradients = core.backward(dy, saved);
        return AttentionResult{out, gradients.q, gradients.k, gradients.v};
      };
      const AttentionResult kept = run({"kept", false, false});
      for (const Saving& saving : {Saving{"recomputed", true, false}, Saving{"offloaded", false, true},
                                   Saving{"recomputed and offloaded", true, true}}) {
        SCOPED_TRACE(testing::Message() << case_name(heads) << " " << dtype << " " << saving.name);
        const AttentionResult got = run(saving);
        EXPECT_TRUE(at::equal(got.out, kept.out));
        EXPECT_TRUE(at::equal(got.dq, kept.dq));
        EXPECT_TRUE(at::equal(got.dk, kept.dk));
        EXPECT_TRUE(at::equal(got.dv, kept.dv));
      }
    }
  }
}

// Bytes between forward and backward, of 10 x 2 tokens with 4 heads over 2 groups.
TEST(CoreAttention, KeepsWhatItsPolicySays) {
  const Heads heads{4, 2, 8, 3};
  const int64_t s = 10, element = 4, tokens = s * kBatch;
  const int64_t q = tokens * heads.heads * heads.d * element, k = tokens * heads.groups * heads.d * element,
                v = tokens * heads.groups * heads.dv * element, out = tokens * heads.heads * heads.dv * element,
                sums = tokens * heads.heads * element;
  const auto held = [&](bool recomputes, bool remakes_q) {
    const nn::SavePolicy policy = make_policy({"", recomputes, false}, "");
    const device::MemoryMeter meter;
    nn::CoreInputs in = inputs(heads, s, s, at::kFloat);
    const nn::CoreAttention core(core_spec(in), policy);
    int made = 0;
    nn::Input of_q = in.q;
    if (remakes_q) {
      of_q.recomputed = nn::Saved::recomputed([&] {
        ++made;
        return inputs(heads, s, s, at::kFloat).q;
      });
    }
    nn::CoreSaved saved;
    core.forward(of_q, in.k, in.v, {}, {}, &saved);
    in = {};
    of_q = at::Tensor();
    const int64_t bytes = meter.bytes();
    core.backward(gradient(heads, s, at::kFloat).flatten(2), saved);
    EXPECT_EQ(made, remakes_q ? 1 : 0);
    return bytes;
  };
  EXPECT_EQ(held(false, false), q + k + v + out + sums);
  EXPECT_EQ(held(false, true), k + v + out + sums);
  EXPECT_EQ(held(true, false), q + k + v);
  EXPECT_EQ(held(true, true), k + v);
}

// As on a rank of a ring: its queries over the keys of one rank at a time, joined by their logsumexp. Each block's
// backward reads the joined values.
TEST(CoreAttention, BlocksOfKeysAreJoinedByTheirLogsumexp) {
  const int64_t s = 15, first = 6;
  for (const Heads& heads : kHeads) {
    for (const double dropout : {0.0, 0.3}) {
      SCOPED_TRACE(testing::Message() << case_name(heads) << " dropout " << dropout);
      const nn::CoreInputs in = inputs(heads, s, s, at::kDouble);
      const nn::CoreSpec spec = core_spec(in, dropout, 2);
      const nn::Microbatch batch = make_batch(0, s);
      const at::Tensor dy = gradient(heads, s, at::kDouble);
      const nn::CoreAttention core(spec, {});
      std::vector<nn::CoreSaved> blocks;
      std::vector<at::Tensor> outs, sums;
      for (const auto& [begin, end] : {std::pair{int64_t{0}, first}, std::pair{first, s}}) {
        // Positions of selected keys refer to the whole sequence, so that the dropout equals that of the whole.
        const nn::CorePositions positions{{}, {0, at::arange(begin, end, at::kLong), s}};
        const auto narrow_rows = [begin = begin, end = end](const at::Tensor& x) {
          return x.narrow(0, begin, end - begin);
        };
        nn::CoreSaved& saved = blocks.emplace_back();
        outs.push_back(core.forward(in.q, narrow_rows(in.k), narrow_rows(in.v), positions, batch, &saved).x);
        sums.push_back(saved.logsumexp.get());
      }
      const at::Tensor sum = at::logaddexp(sums[0], sums[1]);
      at::Tensor out = at::zeros({s, kBatch, heads.heads, heads.dv}, at::kDouble);
      for (size_t i = 0; i < 2; ++i)
        out += outs[i].view(out.sizes()) * (sums[i] - sum).exp().permute({2, 0, 1}).unsqueeze(3);
      std::vector<nn::CoreInputs> d;
      for (nn::CoreSaved& saved : blocks) {
        saved.out = nn::Saved(out.flatten(2)), saved.logsumexp = nn::Saved(sum);
        d.push_back(core.backward(dy.flatten(2), saved));
      }
      expect_attended({out, d[0].q + d[1].q, at::cat({d[0].k, d[1].k}), at::cat({d[0].v, d[1].v})},
                      plain_attention(in, {spec, {}, batch}, dy), get_tolerance(at::kDouble));
    }
  }
}

struct CallRecorder final : device::Recorder {
  std::vector<std::pair<std::string, double>> calls;
  void run(device::Operation operation) override {
    calls.emplace_back(operation.name, operation.flops);
    operation.run();
  }
  void issued(const device::Operation& product) override { calls.emplace_back(product.name, product.flops); }
};

// On a GPU. Half of the 16 x 16 pairs: forward multiplies q k and p v, backward two more of each size, and q k once
// more.
TEST(CoreAttention, IsFusedForEqualHeadSizesOnlyAndTellsTheFlopsOfEach) {
  using Calls = std::vector<std::pair<std::string, double>>;
  const auto calls = [](int64_t d, int64_t dv) {
    CallRecorder recorder;
    const device::Target target{at::Device(at::kCUDA, 0), &recorder, true};
    const Heads heads{4, 2, d, dv};
    const nn::CoreInputs real = inputs(heads, 16, 16, at::kBFloat16);
    const nn::CoreInputs in{real.q.to(at::kMeta), real.k.to(at::kMeta), real.v.to(at::kMeta)};
    nn::CoreSpec spec = core_spec(in);
    spec.target = spec.dropout.target = target;
    run_attention(in, {spec, {}, {}}, gradient(heads, 16, at::kBFloat16).to(at::kMeta));
    return recorder.calls;
  };
  const double pairs = 2 * 4 * 16 * 16 / 2;
  EXPECT_EQ(calls(16, 16),
            (Calls{{"attention_flash", 2 * pairs * 32}, {"attention_flash_backward", 2 * pairs * 80}}));
  // Matmuls with our softmax between them, computed over all pairs.
  const double qk = 4 * pairs * 16, v_flops = 4 * pairs * 8;
  EXPECT_EQ(calls(16, 8), (Calls{{"attention_bmm", qk},
                                 {"attention_softmax", 0},
                                 {"attention_bmm", v_flops},
                                 {"attention_bmm", qk},
                                 {"attention_bmm", v_flops},
                                 {"attention_softmax_backward", 0},
                                 {"attention_baddbmm", v_flops},
                                 {"attention_baddbmm", qk},
                                 {"attention_bmm", qk}}));
}

// The operators called on a GPU against the table in config/attention.h, for head sizes, masks and windows.
TEST(CoreAttention, AsksAGpuForWhatTheTableOfChoicesSays) {
  std::map<std::string, int> num_calls;
  enum Documents { none, by_number, by_offset };
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    for (const int64_t d : {8, 12, 64, 128, 208, 256, 264}) {
      for (const Documents documents : {none, by_number, by_offset}) {
        for (const int64_t window : {-1, 5}) {
          for (const bool later : {false, true}) {  // the first query comes after the first key
            CallRecorder recorder;
            const device::Target target{at::Device(at::kCUDA, 0), &recorder, true};
            const Heads heads{4, 2, d, d};
            const nn::CoreInputs real = inputs(heads, 16, 16, type);
            const nn::CoreInputs in{real.q.to(at::kMeta), real.k.to(at::kMeta), real.v.to(at::kMeta)};
            nn::CoreSpec spec = core_spec(in);
            spec.target = spec.dropout.target = target;
            spec.window = window;
            nn::Microbatch batch;
            const auto integers = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
            if (documents != none) batch.documents.ids = at::zeros({in.q.size(1), 16}, integers);
            if (documents == by_offset) batch.documents.offsets = at::zeros({9}, integers);
            nn::CorePositions positions;
            if (later) positions.queries.first = 3;
            nn::attend(in, {spec, positions, batch});
            config::AttentionCase test_case{.head_dim = d, .v_head_dim = d};
            test_case.plain_mask = !later && documents != by_number;
            test_case.window = window >= 0, test_case.documents = documents != none;
            test_case.capability = device::compute_capability(), test_case.queries = test_case.keys = 16;
            if (type == at::kFloat) test_case.dtype = config::ParamsDtype::fp32;
            if (type == at::kDouble) test_case.dtype = config::ParamsDtype::fp64;
            const std::map<config::AttentionBy, std::string> names{
                {config::AttentionBy::flash, "attention_flash"},
                {config::AttentionBy::memory_efficient, "attention_efficient"},
                {config::AttentionBy::own, "attention_bmm"}};
            ASSERT_FALSE(recorder.calls.empty());
            EXPECT_EQ(recorder.calls[0].first, names.at(config::gpu_attention(test_case).by))
                << type << " " << d << " documents " << documents << " window " << window << (later ? " later" : "");
            ++num_calls[recorder.calls[0].first];
          }
        }
      }
    }
  }
  EXPECT_EQ(num_calls["attention_flash"], 2 * 5 * 2 * 2)
      << "halves, 8 divides and up to 256, no numbers, windows or not";
  EXPECT_EQ(num_calls["attention_efficient"], 5) << "fp32, the same sizes, plain masks alone";
  EXPECT_EQ(num_calls["attention_bmm"], 4 * 7 * 3 * 2 * 2 - 45);
}

}  // namespace
}  // namespace metroplex::test::core_attention_test
