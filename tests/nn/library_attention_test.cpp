// Attention by libtorch's flash and cuDNN operators, with plain formulas as fakes: checks their arguments, and the
// layout conversions before and after.
#include "nn/library_attention.h"

#include <random>

#include "device/memory_meter.h"
#include "nn/attention_blocks.h"
#include "nn/block_documents.h"
#include "nn/chosen_rows.h"
#include "nn/library_stand_ins.h"
#include "support/allocations.h"

namespace metroplex::test::library_attention_test {
namespace {

using library_fakes::calls;
using library_fakes::FakeOperators;
using library_fakes::kGpu;

// As in an attention layer: views into one matmul result.
nn::CoreInputs inputs(int64_t s, int64_t b, int64_t heads, int64_t groups, int64_t d, at::ScalarType type) {
  const at::Tensor all = sample({s, b, groups, heads / groups + 2, d}, 5, type);
  return {all.narrow(3, 0, heads / groups).reshape({s, b, heads, d}), all.select(3, heads / groups),
          all.select(3, heads / groups + 1)};
}

// [b, s] ids of documents that end at multiples of a number per row.
at::Tensor documents(int64_t b, int64_t s, int64_t every) {
  std::vector<int64_t> ids;
  for (int64_t row = 0; row < b; ++row) {
    int64_t document = 0;
    for (int64_t i = 0; i < s; ++i) {
      ids.push_back(document);
      if ((i * (row + 3) + row) % every == every - 1) ++document;
    }
  }
  return at::tensor(ids, at::kLong).view({b, s});
}

int64_t count(const at::Tensor& ids) { return (ids.diff(1, 1).ne(0).sum() + ids.size(0)).item<int64_t>(); }

TEST(DocumentOffsets, AreWhereDocumentsBeginAndThenTheEnd) {
  const at::Tensor ids = at::tensor({0, 0, 1, 2, 2, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, at::kLong).view({3, 5});
  EXPECT_TRUE(nn::document_offsets(ids, 3).equal(at::tensor({0, 2, 3, 5, 10, 11, 12, 13, 14, 15}, at::kLong)));
  EXPECT_TRUE(
      nn::document_offsets(ids, 4).equal(at::tensor({0, 2, 3, 5, 10, 11, 12, 13, 14, 15, 15, 15, 15}, at::kLong)));
  EXPECT_FALSE(nn::document_offsets(ids, 2).defined()) << "nine documents are more than six";
  EXPECT_TRUE(nn::document_offsets(at::zeros({1, 4}, at::kLong), 1).equal(at::tensor({0, 4}, at::kLong)));
  EXPECT_FALSE(nn::document_offsets(at::arange(4).view({1, 4}), 3).defined());
}

// Several samples, heads per group, lengths of documents and empty documents, with and without a window. The same
// call in float64 gives the blocked kernel's result.
TEST(LibraryAttention, OfDocumentsIsTheBlockedKernels) {
  const FakeOperators fakes;
  for (const int64_t b : {1, 3}) {
    for (const int64_t every : {1, 2, 7, 100}) {
      for (const int64_t window : {-1, 4}) {
        SCOPED_TRACE(testing::Message() << b << " samples, every " << every << ", window " << window);
        const int64_t s = 23;
        const nn::CoreInputs in = inputs(s, b, 4, 2, 8, at::kDouble);
        nn::Microbatch batch;
        batch.documents.ids = documents(b, s, every);
        const at::Tensor dy = sample({s, b, 4, 8}, 8, at::kDouble);
        nn::CoreSpec spec = core_spec(in);
        spec.window = window;
        const AttentionResult own = run_attention(in, {spec, {}, batch}, dy);

        const auto first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
        const nn::FusedInputs heads{first(in.q), first(in.k), first(in.v)};
        nn::FusedSpec fused{config::AttentionBy::flash, true, spec.softmax_scale, window, {}};
        const at::Tensor offsets =
            nn::document_offsets(batch.documents.ids, (count(batch.documents.ids) + 4) / b + 1);
        fused.documents = {offsets, offsets};
        const auto [out, sum] = nn::fused_attention(kGpu, heads, fused);
        const nn::FusedGradients gradients = nn::fused_attention_backward(kGpu, heads, {out, sum, first(dy)}, fused);
        const auto back = [](const at::Tensor& x) { return x.permute({2, 0, 1, 3}); };
        // Some 120 roundings, of 23 rows and two heads of a group: 1.3e-14 of the largest, in a dozen operations.
        expect_attended({back(out), back(gradients.q), back(gradients.k), back(gradients.v)}, own, 2e-13);
      }
    }
  }
  EXPECT_EQ(calls.documents, 2 * 2 * 4 * 2);
  EXPECT_EQ(calls.dense, 0);
}

// By the table of choices, for a microbatch of a run, in bf16.
TEST(LibraryAttention, OfAMicrobatchGoesByItsOffsets) {
  const FakeOperators fakes;
  const int64_t s = 33, b = 2;
  const nn::CoreInputs in = inputs(s, b, 4, 2, 16, at::kBFloat16);
  const at::Tensor dy = sample({s, b, 4, 16}, 8, at::kBFloat16);
  nn::Microbatch batch;
  batch.documents.ids = documents(b, s, 5);
  batch.documents.offsets = nn::document_offsets(batch.documents.ids, s);
  nn::CoreSpec spec = core_spec(in);
  const AttentionResult plain = plain_attention(in, {spec, {}, batch}, dy);
  spec.target = kGpu;
  // Inputs are exact. The result, which backward reads rounded, and the gradients are rounded to 2^-8 relative each.
  expect_attended(run_attention(in, {spec, {}, batch}, dy), plain, 2 * 0x1p-8);
  EXPECT_EQ(calls.documents, 2);
  nn::Microbatch whole;
  spec.window = 5;
  expect_attended(run_attention(in, {spec, {}, whole}, dy), plain_attention(in, {spec, {}, whole}, dy), 2 * 0x1p-8);
  EXPECT_EQ(calls.dense, 2);
  EXPECT_EQ(calls.documents, 2);
}

// The operator's result is scaled by the share of the keys, and its backward reads a logsumexp that includes the
// sinks.
TEST(LibraryAttention, OfSinksIsTheFormula) {
  const FakeOperators fakes;
  const int64_t length = 33, samples = 2, heads = 4;
  const nn::CoreInputs in = inputs(length, samples, heads, 2, 16, at::kBFloat16);
  const at::Tensor dy = sample({length, samples, heads, 16}, 8, at::kBFloat16);
  for (const bool with_documents : {false, true}) {
    for (const int64_t window : {-1, 5}) {
      SCOPED_TRACE(testing::Message() << with_documents << " window " << window);
      nn::Microbatch batch;
      if (with_documents) {
        batch.documents.ids = documents(samples, length, 5);
        batch.documents.offsets = nn::document_offsets(batch.documents.ids, length);
      }
      nn::CoreSpec spec = core_spec(in);
      spec.softmax = config::SoftmaxType::learnable;
      spec.window = window;
      const auto sinks = std::make_shared<nn::Param>(
          nn::make_param({"sinks", {heads}, {}, nn::Init::normal}, layer_context({}, false, at::kBFloat16)));
      sinks->data.add_(at::arange(heads));
      give_main_grad({sinks.get()});
      const AttentionResult wanted = plain_attention(in, {spec, {}, batch}, dy, sinks->data.to(at::kDouble));
      spec.target = kGpu;
      const nn::CoreAttention core(spec, {}, sinks);
      nn::CoreSaved saved;
      const at::Tensor out = core.forward(in.q, in.k, in.v, {}, batch, &saved).x;
      const nn::CoreInputs gradients = core.backward(dy.flatten(2), saved);
      // As above, and the result is rounded twice.
      expect_attended({out.view(dy.sizes()), gradients.q, gradients.k, gradients.v}, wanted, 3 * 0x1p-8);
      // Sums over 66 rows of products with the rounded result; rounding errors have random signs.
      EXPECT_LE(largest(sinks->main_grad.to(at::kDouble) - wanted.dsinks),
                3 * 0x1p-8 * std::sqrt(66.0) * std::max(1.0, largest(wanted.dsinks)));
      EXPECT_GT(largest(wanted.dsinks), 0.1);
    }
  }
  EXPECT_EQ(calls.dense, 4);
  EXPECT_EQ(calls.documents, 4);
}

// Consecutive rows, also of a query after cached keys. Documents and fp32 use Metroplex's kernels.
TEST(LibraryAttention, OfChunksIsOneCallAChunk) {
  const FakeOperators fakes;
  const int64_t length = 33, samples = 2;
  const nn::CoreInputs in = inputs(length, samples, 4, 2, 16, at::kBFloat16);
  const at::Tensor dy = sample({length, samples, 4, 16}, 8, at::kBFloat16);
  nn::CoreSpec spec = core_spec(in);
  spec.chunk = 7;
  const AttentionResult plain = plain_attention(in, {spec, {}, {}}, dy);
  spec.target = kGpu;
  expect_attended(run_attention(in, {spec, {}, {}}, dy), plain, 2 * 0x1p-8);
  EXPECT_EQ(calls.dense, 2 * 5);
  const nn::CorePositions last{{length - 1, {}, 0}, {}};
  const nn::CoreInputs cached{in.q.narrow(0, length - 1, 1), in.k, in.v};
  const at::Tensor out = nn::library_attention(cached, {spec, last, {}}).value().out;
  EXPECT_LE(largest(out.to(at::kDouble) - plain.out.narrow(0, length - 1, 1)), 2 * 0x1p-8 * largest(plain.out));
  nn::Microbatch batch;
  batch.documents.ids = documents(samples, length, 5);
  batch.documents.offsets = nn::document_offsets(batch.documents.ids, length);
  EXPECT_FALSE(nn::library_attention(in, {spec, {}, batch}).has_value());
  EXPECT_FALSE(nn::library_attention(inputs(length, samples, 4, 2, 16, at::kFloat), {spec, {}, {}}).has_value());
}

void expect_cudnn_equals_blocked(const nn::CoreInputs& in) {
  const at::Tensor dy = sample({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, 8, at::kDouble);
  const nn::CoreSpec spec = core_spec(in);
  const AttentionResult own = run_attention(in, {spec, {}, {}}, dy);
  const auto first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  const nn::FusedInputs all{first(in.q), first(in.k), first(in.v)};
  const nn::FusedSpec fused{config::AttentionBy::cudnn, true, spec.softmax_scale, -1, {}};
  const auto [out, sum] = nn::fused_attention(kGpu, all, fused);
  calls.laid_out_as = out.const_data_ptr();
  const nn::FusedGradients gradients = nn::fused_attention_backward(kGpu, all, {out, sum, first(dy)}, fused);
  calls.laid_out_as = nullptr;
  const auto back = [](const at::Tensor& x) { return x.permute({2, 0, 1, 3}); };
  // as above
  expect_attended({back(out), back(gradients.q), back(gradients.k), back(gradients.v)}, own, 2e-13);
}

// Values with another head size than keys, as in latent attention; grouped heads as views into one matmul result.
TEST(LibraryAttention, OfCudnnIsTheBlockedKernels) {
  const FakeOperators fakes;
  const int64_t s = 19, b = 2, heads = 3;
  expect_cudnn_equals_blocked({sample({s, b, heads, 24}, 5, at::kDouble), sample({s, b, heads, 24}, 6, at::kDouble),
                               sample({s, b, heads, 16}, 7, at::kDouble)});
  expect_cudnn_equals_blocked(inputs(s, b, 6, 2, 16, at::kDouble));
  EXPECT_EQ(calls.cudnn, 4);
}

// Positions of some queries and some keys of a sequence, in ranges in any order, and as tensors.
nn::Positions random_positions(std::mt19937& random, int64_t whole, double share) {
  std::vector<nn::IndexRange> ranges;
  for (int64_t first = 0; first < whole;) {
    const int64_t count = std::min<int64_t>(whole - first, 1 + static_cast<int64_t>(random() % 6));
    if (std::bernoulli_distribution(share)(random)) ranges.push_back({first, count});
    first += count;
  }
  if (ranges.empty()) ranges.push_back({0, 1});
  if (random() % 2 == 0) std::shuffle(ranges.begin(), ranges.end(), random);
  std::vector<at::Tensor> rows;
  for (const nn::IndexRange& range : ranges)
    rows.push_back(at::arange(range.first, range.first + range.count, at::kLong));
  return {0, at::cat(rows), whole, ranges};
}

// The calls of a rank, each by an operator that supports it; only cuDNN supports another head size of values.
nn::LibraryCalls make_calls(const nn::CoreInputs& in, const nn::CoreCall& call) {
  const nn::RowOrder queries(call.positions.queries.ranges), keys(call.positions.keys.ranges);
  const nn::CorePositions ordered{
      {0, queries.sorted_order(call.positions.queries.rows), call.positions.queries.whole, queries.positions()},
      {0, keys.sorted_order(call.positions.keys.rows), call.positions.keys.whole, keys.positions()}};
  nn::LibraryCalls parts;
  for (const nn::AttentionBlock& block :
       nn::attention_blocks(queries.positions(), keys.positions(), call.spec.window, call.spec.chunk)) {
    const bool flash_alone = block.window >= 0 || call.batch.documents.ids.defined(),
               cudnn = in.v.size(3) != in.k.size(3) || (!flash_alone && block.queries.count < block.keys.count);
    nn::BlockDocuments documents;
    if (call.batch.documents.ids.defined()) documents = nn::block_documents(call.batch, block, ordered).value();
    parts.push_back({block.queries,
                     block.keys,
                     {cudnn ? config::AttentionBy::cudnn : config::AttentionBy::flash, block.causal,
                      call.spec.softmax_scale, block.window, documents.rows},
                     documents.hidden});
  }
  return parts;
}

// Includes the logsumexp, also for queries without keys. The backward uses a result over more keys than the local
// ones, as in a ring. With windows, with documents, and with both.
TEST(LibraryAttention, OfChosenRowsIsTheBlockedKernels) {
  const FakeOperators fakes;
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const auto whole = static_cast<int64_t>(1 + random() % 40);
    const nn::CorePositions here{random_positions(random, whole, 0.6), random_positions(random, whole, 0.6)};
    const int64_t queries = here.queries.rows.numel(), keys = here.keys.rows.numel(), b = 2;
    const int64_t dv = round % 4 == 1 ? 3 : 6;
    nn::Microbatch batch;
    if (round % 4 >= 2 && round % 8 != 2) {
      batch.documents.ids = documents(b, whole, static_cast<int64_t>(2 + random() % 12));
      batch.documents.offsets = nn::document_offsets(batch.documents.ids, whole + 1);
    }
    SCOPED_TRACE(testing::Message() << "round " << round << ": queries " << here.queries.rows << " keys "
                                    << here.keys.rows);
    const nn::CoreInputs in{sample({queries, b, 4, 6}, 5, at::kDouble), sample({keys, b, 2, 6}, 6, at::kDouble),
                            sample({keys, b, 2, dv}, 7, at::kDouble)};
    const at::Tensor dy = sample({queries, b, 4, dv}, 8, at::kDouble);
    nn::CoreSpec spec = core_spec(in);
    if (round % 4 == 2 || round % 8 == 3) spec.window = static_cast<int64_t>(random() % 12);
    if (round % 4 == 0) spec.chunk = round % 12 == 0 ? 0 : static_cast<int64_t>(1 + random() % 12);
    const nn::CoreResult own = nn::attend(in, {spec, here, batch});
    const nn::CoreResult more{own.out + sample({queries, b, 4, dv}, 9, at::kDouble),
                              at::logaddexp(own.logsumexp, sample({b, 4, queries}, 10, at::kDouble))};
    const nn::CoreInputs gradients = nn::attend_backward(dy, in, more, {spec, here, batch});

    spec.target = kGpu;
    const nn::CoreCall call{spec, here, batch};
    const nn::LibraryCalls parts = make_calls(in, call);
    const nn::CoreResult result = nn::attention_by_calls(in, call, parts);
    const nn::CoreInputs got = nn::attention_by_calls_backward(dy, in, more, call, parts);
    // Sums of at most 80 terms, of 40 queries and two heads of a group: as many roundings are 8.9e-15. The measured
    // error is 6e-16.
    expect_attended({result.out, got.q, got.k, got.v}, {own.out, gradients.q, gradients.k, gradients.v}, 1e-14);
    const at::Tensor none = own.logsumexp.isinf();
    EXPECT_TRUE(result.logsumexp.isinf().equal(none));
    // The logarithm of a sum of at most 40 exponentials; its roundings are 4.4e-15 relative. The measured error is
    // 9e-16.
    EXPECT_LE(largest((result.logsumexp - own.logsumexp).masked_fill(none, 0)), 5e-15);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(calls.dense, 100);
  EXPECT_GT(calls.cudnn, 100);
  EXPECT_GT(calls.documents, 100);
  EXPECT_GT(calls.windows, 100);
}

// The cases of nn_gpu_test with microbatches of a run, within the rounding error allowed on a GPU.
TEST(LibraryAttention, OfChosenRowsInHalvesIsTheFormulaToItsRoundings) {
  const FakeOperators fakes;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for_chosen_rows(50, {64}, [&](const std::string& name, const ChosenRows& random_positions) {
      SCOPED_TRACE(testing::Message() << type << ", " << name);
      const auto [in, dy] = make_operands(random_positions, type);
      nn::CoreSpec spec = core_spec(in);
      spec.window = random_positions.window;
      nn::CoreSpec there = spec;
      there.target = kGpu;
      expect_rounded_attended(run_attention(in, {there, random_positions.positions, random_positions.batch}, dy),
                              random_positions, {spec, random_positions.positions, random_positions.batch}, type);
    });
  }
  EXPECT_GT(calls.documents, 0);
  EXPECT_GT(calls.windows, 0);
}

// Our kernels handle calls that blocks cannot express or that exceed the maximum number of documents.
TEST(LibraryAttention, OfChosenRowsTakesHalvesThatTheHostKnows) {
  const FakeOperators fakes;
  const auto positions = [](const std::vector<nn::IndexRange>& ranges) {
    std::vector<at::Tensor> rows;
    for (const nn::IndexRange& range : ranges)
      rows.push_back(at::arange(range.first, range.first + range.count, at::kLong));
    return nn::Positions{0, at::cat(rows), 16, ranges};
  };
  const nn::Positions ends = positions({{0, 4}, {12, 4}}), later = positions({{8, 8}});
  const auto takes = [&](const nn::Positions& rows, at::ScalarType type, int64_t window, bool documents,
                         const std::vector<nn::IndexRange>& counted = {}) {
    const nn::CoreInputs in = inputs(8, 2, 4, 2, 16, type);
    nn::CoreSpec spec = core_spec(in);
    spec.target = kGpu, spec.window = window;
    nn::Microbatch batch;
    if (documents) batch.documents.ids = at::zeros({2, 16}, at::kLong);
    if (documents) batch.documents.offsets = at::tensor({0, 16, 32, 32, 32}, at::kLong);
    batch.documents.ranges = counted;
    return nn::library_attention(in, {spec, {rows, rows}, batch}).has_value();
  };
  EXPECT_TRUE(takes(ends, at::kBFloat16, -1, false));
  EXPECT_TRUE(takes(ends, at::kBFloat16, 3, false));
  EXPECT_TRUE(takes(ends, at::kBFloat16, -1, true));
  EXPECT_TRUE(takes(ends, at::kBFloat16, 3, true));
  EXPECT_FALSE(takes(ends, at::kFloat, -1, false));
  EXPECT_TRUE(takes(later, at::kBFloat16, 3, false));
  EXPECT_TRUE(takes(later, at::kBFloat16, -1, true));
  EXPECT_TRUE(takes(later, at::kBFloat16, 3, true));
  // At most two documents in each of two samples.
  EXPECT_TRUE(takes(later, at::kBFloat16, -1, true, {{0, 12}, {12, 4}, {16, 12}, {28, 4}}));
  EXPECT_FALSE(takes(later, at::kBFloat16, -1, true, {{0, 9}, {9, 1}, {10, 6}, {16, 12}, {28, 4}}));
  nn::Positions unknown = ends;
  unknown.ranges.clear();
  EXPECT_FALSE(takes(unknown, at::kBFloat16, -1, false));
}

// Memory of backward on a GPU for two ranges of 512 queries of a sequence of 4,096, with at most `most` documents.
HeldMemory taken_by_backward(const std::vector<nn::IndexRange>& keys, int64_t window, int64_t most) {
  const at::TensorOptions half = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta),
                          integers = half.dtype(at::kLong);
  const nn::Positions queries{0, at::empty({1024}, integers), 4096, {{512, 512}, {3072, 512}}},
      of_keys{0, at::empty({nn::num_rows(keys)}, integers), 4096, keys};
  const nn::CoreInputs in{at::empty({1024, 1, 4, 64}, half), at::empty({nn::num_rows(keys), 1, 4, 64}, half),
                          at::empty({nn::num_rows(keys), 1, 4, 64}, half)};
  nn::CoreSpec spec = core_spec(in);
  spec.target = {at::Device(at::kCUDA, 0), nullptr, true};
  spec.window = window;
  nn::Microbatch batch;
  batch.documents.ids = at::empty({1, 4096}, integers);
  batch.documents.offsets = at::empty({most + 1}, integers);
  const nn::CoreResult result{at::empty({1024, 1, 4, 64}, half), at::empty({1, 4, 1024}, half.dtype(at::kFloat))};
  nn::CoreInputs gradients;
  const nn::CorePositions positions{queries, of_keys};
  return held(record_allocations([&] {
    gradients = nn::attend_backward(in.q, in, result, {spec, positions, batch});
  }));
}

// Each additional document takes 128 rows of four heads of 64 numbers and a sum, in fp32, and its offset. 32
// documents per sample are 5 in each range, 64 are 9. Keys before the queries are in three documents at any position.
TEST(LibraryAttention, OfChosenRowsTakesMemoryForDocumentsThatCanBeThere) {
  const std::vector<nn::IndexRange> own{{512, 512}, {3072, 512}}, earlier{{0, 512}};
  constexpr int64_t kEach = 128 * 4 * (64 + 1) * 4 + 4;
  const int64_t of_ten = taken_by_backward(own, -1, 32).peak, of_three = taken_by_backward(earlier, -1, 32).peak;
  EXPECT_EQ(taken_by_backward(own, -1, 64).peak - of_ten, 8 * kEach);
  EXPECT_EQ(of_ten - taken_by_backward(own, -1, 9).peak, kEach);
  EXPECT_EQ(taken_by_backward(earlier, -1, 4000).peak, of_three);
  EXPECT_EQ(taken_by_backward(own, 600, 64).kept, taken_by_backward(own, -1, 64).kept) << "by the library too";
}

TEST(LibraryAttention, AnOperatorIsNotAskedForWhatItDoesNotKnow) {
  const nn::FusedInputs in{at::zeros({1, 1, 4, 8}), at::zeros({1, 1, 4, 8}), at::zeros({1, 1, 4, 8})};
  for (const nn::FusedSpec& spec : {nn::FusedSpec{config::AttentionBy::cudnn, true, 1, 3, {}},
                                    nn::FusedSpec{config::AttentionBy::memory_efficient,
                                                  true,
                                                  1,
                                                  -1,
                                                  {at::tensor({0, 4}, at::kLong), at::tensor({0, 4}, at::kLong)}},
                                    nn::FusedSpec{config::AttentionBy::own, true, 1, -1, {}}}) {
    EXPECT_THROW(nn::fused_attention(kGpu, in, spec), std::logic_error);
  }
}

}  // namespace
}  // namespace metroplex::test::library_attention_test
