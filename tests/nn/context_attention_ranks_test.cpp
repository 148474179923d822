// Core attention with keys on other ranks against the formula over the whole sequence in float64. Random splits in
// any order of rows, and documents that differ between samples. Bytes of each exchange against its formula.
#include "nn/context_attention.h"

#include <functional>
#include <random>

#include "comm/backends/counting.h"
#include "nn/library_stand_ins.h"
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
  int64_t neighbours = 1;  // neighbors that share heads in a2a+p2p
  at::Tensor all_rows;     // [cp, s], or [whole] if the ranks have different numbers
  std::vector<nn::IndexRange> rank_rows;
  at::Tensor documents;    // [b, whole]; undefined: one
  bool seen_only = false;  // send only the keys that are attended to
  device::Target target;   // of the ranks
  int64_t window = -1, chunk = 0;
};

nn::Microbatch make_rows_batch(const Case& test_case) {
  nn::Microbatch batch;
  batch.sequence.all_rows = test_case.all_rows, batch.sequence.rank_rows = test_case.rank_rows,
  batch.sequence.length = test_case.whole;
  return batch;
}

// Rows of a group of `neighbours` ranks.
at::Tensor group_rows(const Case& test_case, int64_t group, int64_t neighbours) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < neighbours; ++i)
    rows.push_back(nn::rank_positions(make_rows_batch(test_case), group * neighbours + i).rows);
  return at::cat(rows);
}

// Rows of `owner` that some query of `reader` attends to in any sample, by the definition.
std::vector<nn::IndexRange> seen_rows(const Case& test_case, const at::Tensor& readers, const at::Tensor& owners) {
  const auto queries = readers.accessor<int64_t, 1>(), keys = owners.accessor<int64_t, 1>();
  const auto sees = [&](int64_t query, int64_t key) {
    if (key > query) return false;
    if (!test_case.documents.defined()) return true;
    const auto ids = test_case.documents.accessor<int64_t, 2>();
    for (int64_t b = 0; b < kBatch; ++b) {
      if (ids[b][key] == ids[b][query]) return true;
    }
    return false;
  };
  std::vector<nn::IndexRange> ranges;
  for (int64_t key = 0; key < keys.size(0); ++key) {
    bool seen = false;
    for (int64_t query = 0; query < queries.size(0); ++query) seen |= sees(queries[query], keys[key]);
    if (!seen) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == key) ++ranges.back().count;
    else ranges.push_back({key, 1});
  }
  return ranges;
}

// Between groups of `neighbours` ranks, for the group of `rank`.
nn::KeyExchange make_exchange(const Case& test_case, int64_t rank, int64_t neighbours) {
  nn::KeyExchange keys;
  const int64_t own_group = rank / neighbours,
                ranks = test_case.rank_rows.empty() ? test_case.all_rows.size(0) : std::ssize(test_case.rank_rows);
  const at::Tensor own = group_rows(test_case, own_group, neighbours);
  for (int64_t other = 0; other < ranks / neighbours; ++other) {
    const at::Tensor other_rows = group_rows(test_case, other, neighbours);
    const bool self = other == own_group;
    keys.sent.push_back(self ? std::vector<nn::IndexRange>() : seen_rows(test_case, other_rows, own));
    keys.received.push_back(self ? std::vector<nn::IndexRange>() : seen_rows(test_case, own, other_rows));
  }
  return keys;
}

Case random_case(std::mt19937& random, int64_t cp, CpCommType exchange) {
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  Case test_case;
  test_case.exchange = exchange;
  // Ranks that share heads divide the number of heads. Either their number or the number of groups of heads divides
  // the other.
  test_case.neighbours = exchange == CpCommType::a2a_p2p && cp % 2 == 0 ? 2 : 1;
  const int64_t sharing = exchange == CpCommType::a2a ? cp : test_case.neighbours;
  const int64_t groups = sharing == 1 ? number(1, 3) : number(0, 1) == 0 ? 1 : sharing;
  test_case.h = {groups * sharing * number(1, 2), groups, number(1, 9), number(1, 9)};
  test_case.whole = cp * number(1, 9);
  test_case.dropout = number(0, 1) == 0 ? 0 : 0.3;
  // Ranges of a random length, shuffled over the ranks: from single rows to whole parts.
  const int64_t run = number(1, test_case.whole);
  std::vector<int64_t> ranges, rows;
  for (int64_t first = 0; first < test_case.whole; first += run) ranges.push_back(first);
  std::shuffle(ranges.begin(), ranges.end(), random);
  for (const int64_t first : ranges) {
    for (int64_t i = first; i < std::min(first + run, test_case.whole); ++i) rows.push_back(i);
  }
  test_case.all_rows = at::tensor(rows, at::kLong).view({cp, -1});
  test_case.seen_only = number(0, 1) == 0;
  if (test_case.seen_only && number(0, 1) == 0) {  // split anywhere: a rank may have no rows
    std::vector<int64_t> borders{0, test_case.whole};
    for (int64_t i = 1; i < cp; ++i) borders.push_back(number(0, test_case.whole));
    std::sort(borders.begin(), borders.end());
    for (size_t i = 0; i + 1 < borders.size(); ++i)
      test_case.rank_rows.push_back({borders[i], borders[i + 1] - borders[i]});
    test_case.all_rows = test_case.all_rows.view(-1);
  }
  if (number(0, 2) == 0) return test_case;
  test_case.documents = at::empty({kBatch, test_case.whole}, at::kLong);
  auto ids = test_case.documents.accessor<int64_t, 2>();
  for (int64_t b = 0; b < kBatch; ++b) {
    int64_t document = 0;
    for (int64_t i = 0; i < test_case.whole; ++i) ids[b][i] = document += number(0, 4) == 0 ? 1 : 0;
  }
  return test_case;
}

nn::CoreInputs inputs(const Case& test_case, at::ScalarType dtype) {
  return {sample({test_case.whole, kBatch, test_case.h.heads, test_case.h.d}, 5, dtype),
          sample({test_case.whole, kBatch, test_case.h.groups, test_case.h.d}, 6, dtype),
          sample({test_case.whole, kBatch, test_case.h.groups, test_case.h.dv}, 7, dtype)};
}

std::vector<nn::IndexRange> to_ranges(const at::Tensor& rows) {
  std::vector<nn::IndexRange> ranges;
  const at::Tensor flat = rows.flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const auto row = flat[i].item<int64_t>();
    if (!ranges.empty() && ranges.back().first + ranges.back().count == row) ++ranges.back().count;
    else ranges.push_back({row, 1});
  }
  return ranges;
}

std::vector<nn::IndexRange> document_ranges(const at::Tensor& documents) {
  std::vector<nn::IndexRange> ranges;
  for (int64_t i = 0; i < documents.numel(); ++i) {
    const int64_t place = i % documents.size(1);
    const at::Tensor ids = documents[i / documents.size(1)];
    if (place == 0 || ids[place].item<int64_t>() != ids[place - 1].item<int64_t>()) ranges.push_back({i, 0});
    ++ranges.back().count;
  }
  return ranges;
}

nn::Microbatch make_batch(const Case& test_case, int64_t rank) {
  nn::Microbatch batch;
  batch.counters.samples = nn::make_sample_counters(4, at::tensor({9, 11}, at::kLong));
  batch.documents.ids = test_case.documents;
  if (rank < 0) return batch;
  batch.sequence.all_rows = test_case.all_rows, batch.sequence.rank_rows = test_case.rank_rows,
  batch.sequence.length = test_case.whole;
  batch.sequence.all_ranges = to_ranges(test_case.all_rows);
  batch.sequence.rows = nn::rank_positions(batch, rank).rows;
  if (test_case.target.gpu() && test_case.documents.defined()) {
    batch.documents.offsets = nn::document_offsets(test_case.documents, test_case.whole);
    batch.documents.ranges = document_ranges(test_case.documents);
  }
  if (!test_case.seen_only) return batch;
  batch.sequence.keys = make_exchange(test_case, rank, 1);
  batch.sequence.group_keys = make_exchange(test_case, rank, test_case.neighbours);
  return batch;
}

void set_exchange(nn::CoreSpec& spec, const Case& test_case, const comm::Groups& groups) {
  spec.cp = groups.cp, spec.cp_a2a = groups.cp_a2a, spec.cp_p2p = groups.cp_p2p;
  spec.exchange = test_case.exchange;
}

// Ranks of one sequence. In a2a+p2p pairs of neighbors share heads; three ranks use only the ring.
void run_context_ranks(int cp, CpCommType exchange, const comm::RankBody& body, const RunOptions& options = {}) {
  Layout layout{.cp = cp};
  if (exchange == CpCommType::a2a_p2p) layout.context_levels = cp % 2 == 0 ? "2," + std::to_string(cp / 2) : "1,3";
  run_ranks(cp, layout, body, options);
}

void expect_same_as_full(const Case& test_case, const comm::Groups& groups, at::ScalarType dtype, double tolerance) {
  const comm::Group& cp = groups.cp;
  const nn::CoreInputs whole = inputs(test_case, dtype);
  const at::Tensor dy = sample({test_case.whole, kBatch, test_case.h.heads, test_case.h.dv}, 8, dtype);
  nn::CoreSpec spec = core_spec(whole, test_case.dropout, 2);
  spec.window = test_case.window, spec.chunk = test_case.chunk;
  const AttentionResult wanted = plain_attention(whole, {spec, {}, make_batch(test_case, -1)}, dy);
  const nn::Microbatch batch = make_batch(test_case, cp.index());
  const auto part = [&](const at::Tensor& x) { return x.index_select(0, batch.sequence.rows); };
  set_exchange(spec, test_case, groups);
  spec.target = test_case.target;
  const nn::Positions rows{0, batch.sequence.rows, test_case.whole, to_ranges(batch.sequence.rows)};
  expect_attended(run_attention({part(whole.q), part(whole.k), part(whole.v)}, {spec, {rows, rows}, batch}, part(dy)),
                  {part(wanted.out), part(wanted.dq), part(wanted.dk), part(wanted.dv)}, tolerance);
}

constexpr CpCommType kExchanges[] = {CpCommType::p2p, CpCommType::all_gather, CpCommType::a2a, CpCommType::a2a_p2p};

void sweep(at::ScalarType dtype, int rounds, const std::function<double(int64_t cp)>& tolerance) {
  for (const int cp : {2, 3, 4}) {
    for (const CpCommType exchange : kExchanges) {
      run_context_ranks(cp, exchange, [&](const comm::World& world) {
        std::mt19937 random(17);
        for (int round = 0; round < rounds; ++round) {
          Case test_case = random_case(random, cp, exchange);
          if (round % 3 == 2) test_case.chunk = static_cast<int64_t>(1 + random() % 12);
          SCOPED_TRACE(testing::Message()
                       << config::text_of(exchange) << " cp " << cp << " round " << round << ": " << test_case.h.heads
                       << "/" << test_case.h.groups << " heads of " << test_case.h.d << " and " << test_case.h.dv
                       << ", " << test_case.whole << " rows, dropout " << test_case.dropout);
          expect_same_as_full(test_case, world.groups(), dtype, tolerance(cp));
          if (testing::Test::HasFailure()) return;
        }
      });
    }
  }
}

// Sums of some hundred terms of the size of the result, as in the test of CoreAttention.
TEST(ContextAttention, IsTheFormulaOverTheWholeSequenceForAnyCut) {
  sweep(at::kDouble, 250, [](int64_t) { return 2e-13; });
}

// Half types round probabilities, their gradients and the results once each, and the results for each rank's keys
// once more. Gradients of keys reduced in that type are rounded once for each rank.
TEST(ContextAttention, JoinsHalfTypesInAtLeastFp32) {
  sweep(at::kBFloat16, 20, [](int64_t cp) { return static_cast<double>(4 + cp) * 0x1p-8; });
}

// On a GPU by libtorch's operators, which this test fakes with plain formulas: in blocks, or in one call if a rank
// holds the whole sequence, with documents, windows or both. Each rank's keys cause three roundings to 2^-9: of the
// results of two calls and of their sum. Then come those of the result, also as input of backward, and of the
// gradients. The measured error is 2 of 2^-8.
TEST(ContextAttention, IsByLibraryOperatorsOnAGpu) {
  const library_fakes::FakeOperators fakes;
  for (const int cp : {2, 3, 4}) {
    for (const CpCommType exchange : kExchanges) {
      library_fakes::calls.dense = library_fakes::calls.documents = library_fakes::calls.windows = 0;
      run_context_ranks(cp, exchange, [&](const comm::World& world) {
        std::mt19937 random(23);
        for (int round = 0; round < 40; ++round) {
          Case test_case = random_case(random, cp, exchange);
          SCOPED_TRACE(testing::Message() << config::text_of(exchange) << " cp " << cp << " round " << round);
          test_case.target = library_fakes::kGpu;
          test_case.h.d = test_case.h.dv = 8, test_case.dropout = 0;
          if (round % 2 == 0) test_case.documents = at::Tensor();
          if (!test_case.documents.defined() || round % 4 == 1)
            test_case.window = static_cast<int64_t>(random() % 12);
          if (round % 8 == 0) test_case.window = -1, test_case.chunk = static_cast<int64_t>(1 + random() % 12);
          const auto is_empty = [](const nn::IndexRange& rows) { return rows.count == 0; };
          if (std::any_of(test_case.rank_rows.begin(), test_case.rank_rows.end(), is_empty)) continue;  // our kernels
          expect_same_as_full(test_case, world.groups(), at::kBFloat16, (2 + 1.5 * cp) * 0x1p-8);
          if (testing::Test::HasFailure()) return;
        }
      });
      EXPECT_GT(library_fakes::calls.dense, 0);
      EXPECT_GT(library_fakes::calls.documents, 0);
      // Two neighbors of a2a+p2p are all ranks.
      const bool whole = exchange == CpCommType::a2a || (exchange == CpCommType::a2a_p2p && cp == 2);
      EXPECT_EQ(library_fakes::calls.windows > 0, !whole);
    }
  }
}

// Bytes that all ranks send in one forward, or in a forward and a backward, in bf16.
comm::Traffic::Count counted(const Case& test_case, const char* operation, bool backward, const char* group = "cp") {
  const auto cp = static_cast<int>(test_case.all_rows.size(0));
  const auto traffic = std::make_shared<comm::Traffic>();
  RunOptions options;
  options.traffic = traffic;
  run_context_ranks(
      cp, test_case.exchange,
      [&](const comm::World& world) {
        const nn::CoreInputs whole = inputs(test_case, at::kBFloat16);
        nn::CoreSpec spec = core_spec(whole);
        set_exchange(spec, test_case, world.groups());
        const nn::Microbatch batch = make_batch(test_case, world.groups().cp.index());
        const auto part = [&](const at::Tensor& x) { return x.index_select(0, batch.sequence.rows); };
        const nn::Positions rows{0, batch.sequence.rows, test_case.whole};
        const nn::CoreAttention core(spec, {});
        nn::CoreSaved saved;
        const at::Tensor out =
            core.forward(part(whole.q), part(whole.k), part(whole.v), {rows, rows}, batch, &saved).x;
        if (backward) core.backward(out, saved);
      },
      options);
  return traffic->of(group, operation);
}

TEST(ContextAttention, SendsTheBytesOfTheFormula) {
  const Heads heads{8, 2, 16, 8};
  for (const int cp : {2, 4}) {
    SCOPED_TRACE(testing::Message() << "cp " << cp);
    const int64_t tokens = 4 * kBatch, kv = tokens * 2 * (16 + 8), half = 2;  // of one rank
    const auto bytes = [&](CpCommType exchange, const char* operation, bool backward) {
      Case test_case;
      test_case.h = heads, test_case.whole = 4 * cp, test_case.exchange = exchange;
      test_case.all_rows = at::arange(test_case.whole, at::kLong).view({cp, -1});
      return counted(test_case, operation, backward).bytes / cp;
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

// Pairs of neighbors first exchange queries and results of half the heads, and the keys and values, because each
// group has a head on both. Then a ring of two runs with the rows of both and half the heads.
TEST(ContextAttention, SendsTheBytesOfBothLevels) {
  Case test_case;
  test_case.h = {8, 2, 16, 8}, test_case.whole = 16, test_case.exchange = CpCommType::a2a_p2p,
  test_case.neighbours = 2;
  test_case.all_rows = at::arange(16, at::kLong).view({4, 4});
  const int64_t tokens = 4 * kBatch, kv = tokens * 2 * (16 + 8), q = tokens * 8 * 16, out = tokens * 8 * 8, half = 2;
  EXPECT_EQ(counted(test_case, "all_to_all", false, "cp-a2a").bytes, 4 * half * (q + kv + out));
  EXPECT_EQ(counted(test_case, "all_to_all", true, "cp-a2a").bytes, 4 * half * (3 * q + 3 * kv + 3 * out));
  EXPECT_EQ(counted(test_case, "send", false, "cp-p2p").bytes, 4 * half * kv) << "twice the rows, half the heads";
  EXPECT_EQ(counted(test_case, "send", true, "cp-p2p").bytes, 4 * (2 * half * kv + 2 * 4 * kv));
  EXPECT_EQ(counted(test_case, "send", true, "cp").calls, 0);
  test_case.seen_only = true;
  test_case.documents = at::arange(16, at::kLong).div(8, "floor").expand({kBatch, 16}).contiguous();
  EXPECT_EQ(counted(test_case, "send", true, "cp-p2p").calls, 0) << "each group has a document";
}

// Documents of 8, 3 and 5 tokens on 4 ranks with 4 positions each. Rank 1 attends to the 4 keys of rank 0, rank 3 to
// the key of rank 2 after its second document. Ranks 0 and 2 receive nothing, and no other ranks communicate.
TEST(ContextAttention, SendsOnlyTheKeysThatAreSeen) {
  Case test_case;
  test_case.h = {8, 2, 16, 8}, test_case.whole = 16, test_case.seen_only = true;
  test_case.all_rows = at::arange(16, at::kLong).view({4, 4});
  test_case.documents =
      at::tensor({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2}, at::kLong).expand({kBatch, 16}).contiguous();
  const int64_t kv = kBatch * 2 * (16 + 8), half = 2, seen = 4 + 1;  // kv: per token
  const auto check = [&](const char* operation, bool backward, int64_t calls, int64_t bytes) {
    const comm::Traffic::Count count = counted(test_case, operation, backward);
    EXPECT_EQ(count.calls, calls) << operation << backward;
    EXPECT_EQ(count.bytes, bytes) << operation << backward;
  };
  check("send", false, 2, half * seen * kv);
  check("send", true, 6, 2 * half * seen * kv + 4 * seen * kv);
  test_case.exchange = CpCommType::all_gather;  // own rows are part of the call and stay in place
  check("all_to_all", false, 4 * 2, half * (16 + seen) * kv);
  check("all_to_all", true, 4 * 6, 3 * half * (16 + seen) * kv);
  test_case.exchange = CpCommType::p2p;
  test_case.documents = at::arange(16, at::kLong).div(4, "floor").expand({kBatch, 16}).contiguous();
  check("send", true, 0, 0);
}

}  // namespace
}  // namespace metroplex::test::context_attention_ranks_test
