// Core attention whose keys other ranks hold: random cuts, in any order of rows, and documents that differ between
// samples, against the formula over the whole sequence in float64. Bytes of each exchange against its formula.
#include "nn/context_attention.h"

#include <functional>
#include <random>

#include "comm/backends/counting.h"
#include "nn/plain_attention.h"
#include "support/run_ranks.h"

namespace metroplex::test::context_attention_ranks_test {
namespace {

using config::CpCommType;

constexpr int64_t kBatch = 2;

struct Heads {
  int64_t heads, groups, d, dv;
};

struct Case {
  Heads h{};
  int64_t whole = 0;
  double dropout = 0;
  CpCommType exchange = CpCommType::p2p;
  at::Tensor all_rows;   // [cp, s]
  at::Tensor documents;  // [b, whole]; undefined: one
};

Case random_case(std::mt19937& random, int64_t cp, CpCommType exchange) {
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  Case c;
  c.exchange = exchange;
  // By heads, cp divides the heads, and of cp and the groups one divides the other.
  const bool by_heads = exchange == CpCommType::a2a;
  const int64_t groups = by_heads && number(0, 1) == 0 ? 1 : by_heads ? cp : number(1, 3);
  c.h = {groups * (by_heads ? cp : 1) * number(1, 2), groups, number(1, 9), number(1, 9)};
  c.whole = cp * number(1, 9);
  c.dropout = number(0, 1) == 0 ? 0 : 0.3;
  // Runs of the length of a draw, dealt out by shuffling: from single rows to whole parts.
  const int64_t run = number(1, c.whole);
  std::vector<int64_t> runs, rows;
  for (int64_t first = 0; first < c.whole; first += run) runs.push_back(first);
  std::shuffle(runs.begin(), runs.end(), random);
  for (const int64_t first : runs) {
    for (int64_t i = first; i < std::min(first + run, c.whole); ++i) rows.push_back(i);
  }
  c.all_rows = at::tensor(rows, at::kLong).view({cp, -1});
  if (number(0, 2) == 0) return c;
  c.documents = at::empty({kBatch, c.whole}, at::kLong);
  auto ids = c.documents.accessor<int64_t, 2>();
  for (int64_t b = 0; b < kBatch; ++b) {
    int64_t document = 0;
    for (int64_t i = 0; i < c.whole; ++i) ids[b][i] = document += number(0, 4) == 0 ? 1 : 0;
  }
  return c;
}

nn::CoreInputs inputs(const Case& c, at::ScalarType dtype) {
  return {sample({c.whole, kBatch, c.h.heads, c.h.d}, 5, dtype),
          sample({c.whole, kBatch, c.h.groups, c.h.d}, 6, dtype),
          sample({c.whole, kBatch, c.h.groups, c.h.dv}, 7, dtype)};
}

nn::Microbatch batch_of(const Case& c, int64_t rank) {
  nn::Microbatch batch;
  batch.sample_counters = nn::counters_of_samples(4, at::tensor({9, 11}, at::kLong));
  batch.document_ids = c.documents;
  if (rank < 0) return batch;
  batch.all_rows = c.all_rows;
  batch.rows = c.all_rows[rank];
  batch.full_seq_len = c.whole;
  return batch;
}

// What a rank of the group gets, in the places of its rows of the whole.
void expect_as_whole(const Case& c, const comm::Group& cp, at::ScalarType dtype, double tolerance) {
  const nn::CoreInputs whole = inputs(c, dtype);
  const at::Tensor dy = sample({c.whole, kBatch, c.h.heads, c.h.dv}, 8, dtype);
  nn::CoreSpec spec = core_spec(whole, c.dropout, 2);
  const Attended wanted = plain_attention(whole, {spec, {}, batch_of(c, -1)}, dy);
  const nn::Microbatch batch = batch_of(c, cp.index());
  const auto part = [&](const at::Tensor& x) { return x.index_select(0, batch.rows); };
  spec.cp = cp;
  spec.exchange = c.exchange;
  const nn::Positions rows{0, batch.rows, c.whole};
  expect_attended(attended({part(whole.q), part(whole.k), part(whole.v)}, {spec, {rows, rows}, batch}, part(dy)),
                  {part(wanted.out), part(wanted.dq), part(wanted.dk), part(wanted.dv)}, tolerance);
}

constexpr CpCommType kExchanges[] = {CpCommType::p2p, CpCommType::all_gather, CpCommType::a2a};

void walk(at::ScalarType dtype, int rounds, const std::function<double(int64_t cp)>& tolerance) {
  for (const int cp : {2, 3, 4}) {
    for (const CpCommType exchange : kExchanges) {
      run_ranks(cp, {.cp = cp}, [&](const comm::World& world) {
        std::mt19937 random(17);
        for (int round = 0; round < rounds; ++round) {
          const Case c = random_case(random, cp, exchange);
          SCOPED_TRACE(testing::Message() << config::text_of(exchange) << " cp " << cp << " round " << round << ": "
                                          << c.h.heads << "/" << c.h.groups << " heads of " << c.h.d << " and "
                                          << c.h.dv << ", " << c.whole << " rows, dropout " << c.dropout);
          expect_as_whole(c, world.groups().cp, dtype, tolerance(cp));
          if (testing::Test::HasFailure()) return;
        }
      });
    }
  }
}

// Sums of some hundred terms of the size of the result, as in CoreAttention's own test.
TEST(ContextAttention, IsTheFormulaOverTheWholeSequenceForAnyCut) {
  walk(at::kDouble, 250, [](int64_t) { return 2e-13; });
}

// Half types round probabilities, their gradients and the results once each, results of the keys of each rank once
// more, and gradients of keys that are reduced in that type once for each rank.
TEST(ContextAttention, JoinsHalfTypesInAtLeastFp32) {
  walk(at::kBFloat16, 20, [](int64_t cp) { return static_cast<double>(4 + cp) * 0x1p-8; });
}

// Bytes that all ranks send, of one forward and one backward.
comm::Traffic::Count counted(CpCommType exchange, int cp, const Heads& h, const char* operation, bool backward) {
  const auto traffic = std::make_shared<comm::Traffic>();
  RunOptions options;
  options.traffic = traffic;
  run_ranks(
      cp, {.cp = cp},
      [&](const comm::World& world) {
        Case c;
        c.h = h, c.whole = 4 * cp, c.exchange = exchange;
        c.all_rows = at::arange(c.whole, at::kLong).view({cp, -1});
        const nn::CoreInputs whole = inputs(c, at::kBFloat16);
        nn::CoreSpec spec = core_spec(whole);
        spec.cp = world.groups().cp;
        spec.exchange = exchange;
        const nn::Microbatch batch = batch_of(c, world.groups().cp.index());
        const auto part = [&](const at::Tensor& x) { return x.narrow(0, 0, 4); };
        const nn::Positions rows{0, batch.rows, c.whole};
        const nn::CoreAttention core(spec, {});
        nn::CoreSaved saved;
        const at::Tensor out =
            core.forward(part(whole.q), part(whole.k), part(whole.v), {rows, rows}, batch, &saved).x;
        if (backward) core.backward(out, saved);
      },
      options);
  return traffic->of("cp", operation);
}

TEST(ContextAttention, SendsTheBytesOfTheFormula) {
  const Heads h{8, 2, 16, 8};
  for (const int cp : {2, 4}) {
    SCOPED_TRACE(testing::Message() << "cp " << cp);
    const int64_t tokens = 4 * kBatch, kv = tokens * 2 * (16 + 8), half = 2;  // of one rank
    const auto bytes = [&](CpCommType exchange, const char* operation, bool backward) {
      return counted(exchange, cp, h, operation, backward).bytes / cp;
    };
    EXPECT_EQ(bytes(CpCommType::p2p, "send", false), (cp - 1) * half * kv);
    EXPECT_EQ(bytes(CpCommType::p2p, "send", true), 2 * (cp - 1) * half * kv + cp * 4 * kv) << "gradients in fp32";
    EXPECT_EQ(bytes(CpCommType::all_gather, "all_gather", false), cp * half * kv);
    EXPECT_EQ(bytes(CpCommType::all_gather, "all_gather", true), 2 * cp * half * kv);
    EXPECT_EQ(bytes(CpCommType::all_gather, "reduce_scatter", true), cp * half * kv);
    // With 4 ranks for 2 groups keys and values are sent twice.
    const int64_t copies = cp == 4 ? 2 : 1, q = tokens * 8 * 16, out = tokens * 8 * 8;
    EXPECT_EQ(bytes(CpCommType::a2a, "all_to_all", false), half * (q + copies * kv + out));
    EXPECT_EQ(bytes(CpCommType::a2a, "all_to_all", true), half * (3 * q + 3 * copies * kv + 3 * out));
  }
}

}  // namespace
}  // namespace metroplex::test::context_attention_ranks_test
