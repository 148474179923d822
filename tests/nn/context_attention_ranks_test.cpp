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
  std::vector<nn::RowRun> rank_rows;
  at::Tensor documents;    // [b, whole]; undefined: one
  bool seen_only = false;  // send only the keys that are attended to
  device::Target target;   // of the ranks
  int64_t window = -1;
};

nn::Microbatch rows_only(const Case& c) {
  nn::Microbatch batch;
  batch.all_rows = c.all_rows, batch.rank_rows = c.rank_rows, batch.full_seq_len = c.whole;
  return batch;
}

// Rows of a group of `neighbours` ranks.
at::Tensor rows_of_group(const Case& c, int64_t group, int64_t neighbours) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < neighbours; ++i) rows.push_back(nn::rows_of(rows_only(c), group * neighbours + i).rows);
  return at::cat(rows);
}

// Rows of `owner` that some query of `reader` attends to in any sample, by the definition.
std::vector<nn::RowRun> seen_rows(const Case& c, const at::Tensor& readers, const at::Tensor& owners) {
  const auto queries = readers.accessor<int64_t, 1>(), keys = owners.accessor<int64_t, 1>();
  const auto sees = [&](int64_t query, int64_t key) {
    if (key > query) return false;
    if (!c.documents.defined()) return true;
    const auto ids = c.documents.accessor<int64_t, 2>();
    for (int64_t b = 0; b < kBatch; ++b) {
      if (ids[b][key] == ids[b][query]) return true;
    }
    return false;
  };
  std::vector<nn::RowRun> runs;
  for (int64_t key = 0; key < keys.size(0); ++key) {
    bool seen = false;
    for (int64_t query = 0; query < queries.size(0); ++query) seen |= sees(queries[query], keys[key]);
    if (!seen) continue;
    if (!runs.empty() && runs.back().first + runs.back().count == key) ++runs.back().count;
    else runs.push_back({key, 1});
  }
  return runs;
}

// Between groups of `neighbours` ranks, for the group of `rank`.
nn::KeyTravel travel_of(const Case& c, int64_t rank, int64_t neighbours) {
  nn::KeyTravel keys;
  const int64_t mine = rank / neighbours, ranks = c.rank_rows.empty() ? c.all_rows.size(0) : std::ssize(c.rank_rows);
  const at::Tensor own = rows_of_group(c, mine, neighbours);
  for (int64_t other = 0; other < ranks / neighbours; ++other) {
    const at::Tensor theirs = rows_of_group(c, other, neighbours);
    const bool self = other == mine;
    keys.sent.push_back(self ? std::vector<nn::RowRun>() : seen_rows(c, theirs, own));
    keys.received.push_back(self ? std::vector<nn::RowRun>() : seen_rows(c, own, theirs));
  }
  return keys;
}

Case random_case(std::mt19937& random, int64_t cp, CpCommType exchange) {
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  Case c;
  c.exchange = exchange;
  // Ranks that share heads divide the number of heads. Either their number or the number of groups of heads divides
  // the other.
  c.neighbours = exchange == CpCommType::a2a_p2p && cp % 2 == 0 ? 2 : 1;
  const int64_t sharing = exchange == CpCommType::a2a ? cp : c.neighbours;
  const int64_t groups = sharing == 1 ? number(1, 3) : number(0, 1) == 0 ? 1 : sharing;
  c.h = {groups * sharing * number(1, 2), groups, number(1, 9), number(1, 9)};
  c.whole = cp * number(1, 9);
  c.dropout = number(0, 1) == 0 ? 0 : 0.3;
  // Ranges of a random length, shuffled over the ranks: from single rows to whole parts.
  const int64_t run = number(1, c.whole);
  std::vector<int64_t> runs, rows;
  for (int64_t first = 0; first < c.whole; first += run) runs.push_back(first);
  std::shuffle(runs.begin(), runs.end(), random);
  for (const int64_t first : runs) {
    for (int64_t i = first; i < std::min(first + run, c.whole); ++i) rows.push_back(i);
  }
  c.all_rows = at::tensor(rows, at::kLong).view({cp, -1});
  c.seen_only = number(0, 1) == 0;
  if (c.seen_only && number(0, 1) == 0) {  // split anywhere: a rank may have no rows
    std::vector<int64_t> borders{0, c.whole};
    for (int64_t i = 1; i < cp; ++i) borders.push_back(number(0, c.whole));
    std::sort(borders.begin(), borders.end());
    for (size_t i = 0; i + 1 < borders.size(); ++i) c.rank_rows.push_back({borders[i], borders[i + 1] - borders[i]});
    c.all_rows = c.all_rows.view(-1);
  }
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

std::vector<nn::RowRun> runs_of(const at::Tensor& rows) {
  std::vector<nn::RowRun> runs;
  const at::Tensor flat = rows.flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const auto row = flat[i].item<int64_t>();
    if (!runs.empty() && runs.back().first + runs.back().count == row) ++runs.back().count;
    else runs.push_back({row, 1});
  }
  return runs;
}

std::vector<nn::RowRun> document_runs(const at::Tensor& documents) {
  std::vector<nn::RowRun> runs;
  for (int64_t i = 0; i < documents.numel(); ++i) {
    const int64_t place = i % documents.size(1);
    const at::Tensor ids = documents[i / documents.size(1)];
    if (place == 0 || ids[place].item<int64_t>() != ids[place - 1].item<int64_t>()) runs.push_back({i, 0});
    ++runs.back().count;
  }
  return runs;
}

nn::Microbatch batch_of(const Case& c, int64_t rank) {
  nn::Microbatch batch;
  batch.sample_counters = nn::counters_of_samples(4, at::tensor({9, 11}, at::kLong));
  batch.document_ids = c.documents;
  if (rank < 0) return batch;
  batch.all_rows = c.all_rows, batch.rank_rows = c.rank_rows, batch.full_seq_len = c.whole;
  batch.all_runs = runs_of(c.all_rows);
  batch.rows = nn::rows_of(batch, rank).rows;
  if (c.target.gpu() && c.documents.defined()) {
    batch.document_offsets = nn::document_offsets(c.documents, c.whole);
    batch.document_runs = document_runs(c.documents);
  }
  if (!c.seen_only) return batch;
  batch.keys = travel_of(c, rank, 1);
  batch.keys_of_groups = travel_of(c, rank, c.neighbours);
  return batch;
}

void set_exchange(nn::CoreSpec& spec, const Case& c, const comm::Groups& groups) {
  spec.cp = groups.cp, spec.cp_a2a = groups.cp_a2a, spec.cp_p2p = groups.cp_p2p;
  spec.exchange = c.exchange;
}

// Ranks of one sequence. In a2a+p2p pairs of neighbors share heads; three ranks use only the ring.
void run_context_ranks(int cp, CpCommType exchange, const comm::RankBody& body, const RunOptions& options = {}) {
  Layout layout{.cp = cp};
  if (exchange == CpCommType::a2a_p2p) layout.context_levels = cp % 2 == 0 ? "2," + std::to_string(cp / 2) : "1,3";
  run_ranks(cp, layout, body, options);
}

void expect_as_whole(const Case& c, const comm::Groups& groups, at::ScalarType dtype, double tolerance) {
  const comm::Group& cp = groups.cp;
  const nn::CoreInputs whole = inputs(c, dtype);
  const at::Tensor dy = sample({c.whole, kBatch, c.h.heads, c.h.dv}, 8, dtype);
  nn::CoreSpec spec = core_spec(whole, c.dropout, 2);
  spec.window = c.window;
  const Attended wanted = plain_attention(whole, {spec, {}, batch_of(c, -1)}, dy);
  const nn::Microbatch batch = batch_of(c, cp.index());
  const auto part = [&](const at::Tensor& x) { return x.index_select(0, batch.rows); };
  set_exchange(spec, c, groups);
  spec.target = c.target;
  const nn::Positions rows{0, batch.rows, c.whole, runs_of(batch.rows)};
  expect_attended(attended({part(whole.q), part(whole.k), part(whole.v)}, {spec, {rows, rows}, batch}, part(dy)),
                  {part(wanted.out), part(wanted.dq), part(wanted.dk), part(wanted.dv)}, tolerance);
}

constexpr CpCommType kExchanges[] = {CpCommType::p2p, CpCommType::all_gather, CpCommType::a2a, CpCommType::a2a_p2p};

void walk(at::ScalarType dtype, int rounds, const std::function<double(int64_t cp)>& tolerance) {
  for (const int cp : {2, 3, 4}) {
    for (const CpCommType exchange : kExchanges) {
      run_context_ranks(cp, exchange, [&](const comm::World& world) {
        std::mt19937 random(17);
        for (int round = 0; round < rounds; ++round) {
          const Case c = random_case(random, cp, exchange);
          SCOPED_TRACE(testing::Message() << config::text_of(exchange) << " cp " << cp << " round " << round << ": "
                                          << c.h.heads << "/" << c.h.groups << " heads of " << c.h.d << " and "
                                          << c.h.dv << ", " << c.whole << " rows, dropout " << c.dropout);
          expect_as_whole(c, world.groups(), dtype, tolerance(cp));
          if (testing::Test::HasFailure()) return;
        }
      });
    }
  }
}

// Sums of some hundred terms of the size of the result, as in the test of CoreAttention.
TEST(ContextAttention, IsTheFormulaOverTheWholeSequenceForAnyCut) {
  walk(at::kDouble, 250, [](int64_t) { return 2e-13; });
}

// Half types round probabilities, their gradients and the results once each, and the results for each rank's keys
// once more. Gradients of keys reduced in that type are rounded once for each rank.
TEST(ContextAttention, JoinsHalfTypesInAtLeastFp32) {
  walk(at::kBFloat16, 20, [](int64_t cp) { return static_cast<double>(4 + cp) * 0x1p-8; });
}

// On a GPU by libtorch's operators, which this test fakes with plain formulas: in blocks, or in one call if a rank
// holds the whole sequence, with documents, windows or both. Each rank's keys cause three roundings to 2^-9: of the
// results of two calls and of their sum. Then come those of the result, also as input of backward, and of the
// gradients. The measured error is 2 of 2^-8.
TEST(ContextAttention, IsByLibraryOperatorsOnAGpu) {
  const library_stand_ins::StandIns stand_ins;
  for (const int cp : {2, 3, 4}) {
    for (const CpCommType exchange : kExchanges) {
      library_stand_ins::calls.dense = library_stand_ins::calls.documents = library_stand_ins::calls.windows = 0;
      run_context_ranks(cp, exchange, [&](const comm::World& world) {
        std::mt19937 random(23);
        for (int round = 0; round < 40; ++round) {
          Case c = random_case(random, cp, exchange);
          SCOPED_TRACE(testing::Message() << config::text_of(exchange) << " cp " << cp << " round " << round);
          c.target = library_stand_ins::kGpu;
          c.h.d = c.h.dv = 8, c.dropout = 0;
          if (round % 2 == 0) c.documents = at::Tensor();
          if (!c.documents.defined() || round % 4 == 1) c.window = static_cast<int64_t>(random() % 12);
          const auto is_empty = [](const nn::RowRun& rows) { return rows.count == 0; };
          if (std::any_of(c.rank_rows.begin(), c.rank_rows.end(), is_empty)) continue;  // our kernels
          expect_as_whole(c, world.groups(), at::kBFloat16, (2 + 1.5 * cp) * 0x1p-8);
          if (testing::Test::HasFailure()) return;
        }
      });
      EXPECT_GT(library_stand_ins::calls.dense, 0);
      EXPECT_GT(library_stand_ins::calls.documents, 0);
      // Two neighbors of a2a+p2p are all ranks.
      const bool whole = exchange == CpCommType::a2a || (exchange == CpCommType::a2a_p2p && cp == 2);
      EXPECT_EQ(library_stand_ins::calls.windows > 0, !whole);
    }
  }
}

// Bytes that all ranks send in one forward, or in a forward and a backward, in bf16.
comm::Traffic::Count counted(const Case& c, const char* operation, bool backward, const char* group = "cp") {
  const auto cp = static_cast<int>(c.all_rows.size(0));
  const auto traffic = std::make_shared<comm::Traffic>();
  RunOptions options;
  options.traffic = traffic;
  run_context_ranks(
      cp, c.exchange,
      [&](const comm::World& world) {
        const nn::CoreInputs whole = inputs(c, at::kBFloat16);
        nn::CoreSpec spec = core_spec(whole);
        set_exchange(spec, c, world.groups());
        const nn::Microbatch batch = batch_of(c, world.groups().cp.index());
        const auto part = [&](const at::Tensor& x) { return x.index_select(0, batch.rows); };
        const nn::Positions rows{0, batch.rows, c.whole};
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
  const Heads h{8, 2, 16, 8};
  for (const int cp : {2, 4}) {
    SCOPED_TRACE(testing::Message() << "cp " << cp);
    const int64_t tokens = 4 * kBatch, kv = tokens * 2 * (16 + 8), half = 2;  // of one rank
    const auto bytes = [&](CpCommType exchange, const char* operation, bool backward) {
      Case c;
      c.h = h, c.whole = 4 * cp, c.exchange = exchange;
      c.all_rows = at::arange(c.whole, at::kLong).view({cp, -1});
      return counted(c, operation, backward).bytes / cp;
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
  Case c;
  c.h = {8, 2, 16, 8}, c.whole = 16, c.exchange = CpCommType::a2a_p2p, c.neighbours = 2;
  c.all_rows = at::arange(16, at::kLong).view({4, 4});
  const int64_t tokens = 4 * kBatch, kv = tokens * 2 * (16 + 8), q = tokens * 8 * 16, out = tokens * 8 * 8, half = 2;
  EXPECT_EQ(counted(c, "all_to_all", false, "cp-a2a").bytes, 4 * half * (q + kv + out));
  EXPECT_EQ(counted(c, "all_to_all", true, "cp-a2a").bytes, 4 * half * (3 * q + 3 * kv + 3 * out));
  EXPECT_EQ(counted(c, "send", false, "cp-p2p").bytes, 4 * half * kv) << "twice the rows, half the heads";
  EXPECT_EQ(counted(c, "send", true, "cp-p2p").bytes, 4 * (2 * half * kv + 2 * 4 * kv));
  EXPECT_EQ(counted(c, "send", true, "cp").calls, 0);
  c.seen_only = true;
  c.documents = at::arange(16, at::kLong).div(8, "floor").expand({kBatch, 16}).contiguous();
  EXPECT_EQ(counted(c, "send", true, "cp-p2p").calls, 0) << "each group has a document";
}

// Documents of 8, 3 and 5 tokens on 4 ranks with 4 positions each. Rank 1 attends to the 4 keys of rank 0, rank 3 to
// the key of rank 2 after its second document. Ranks 0 and 2 receive nothing, and no other ranks communicate.
TEST(ContextAttention, SendsOnlyTheKeysThatAreSeen) {
  Case c;
  c.h = {8, 2, 16, 8}, c.whole = 16, c.seen_only = true;
  c.all_rows = at::arange(16, at::kLong).view({4, 4});
  c.documents =
      at::tensor({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2}, at::kLong).expand({kBatch, 16}).contiguous();
  const int64_t kv = kBatch * 2 * (16 + 8), half = 2, seen = 4 + 1;  // kv: per token
  const auto check = [&](const char* operation, bool backward, int64_t calls, int64_t bytes) {
    const comm::Traffic::Count count = counted(c, operation, backward);
    EXPECT_EQ(count.calls, calls) << operation << backward;
    EXPECT_EQ(count.bytes, bytes) << operation << backward;
  };
  check("send", false, 2, half * seen * kv);
  check("send", true, 6, 2 * half * seen * kv + 4 * seen * kv);
  c.exchange = CpCommType::all_gather;  // own rows are part of the call and stay in place
  check("all_to_all", false, 4 * 2, half * (16 + seen) * kv);
  check("all_to_all", true, 4 * 6, 3 * half * (16 + seen) * kv);
  c.exchange = CpCommType::p2p;
  c.documents = at::arange(16, at::kLong).div(4, "floor").expand({kBatch, 16}).contiguous();
  check("send", true, 0, 0);
}

}  // namespace
}  // namespace metroplex::test::context_attention_ranks_test
