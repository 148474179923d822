// Attention against the formula in double, with the same inputs and the same mask: in halves it may differ by the
// rounding of what lies between two products of the tensor cores, and of the results.
#include "base/philox.h"
#include "cuda/kernels/blocked_attention.h"
#include "cuda/kernels/dropout_block.h"
#include "kernels_on_host/twins.h"

namespace metroplex::kernels_on_host::attention_formula_test {
namespace {

struct Case {
  int64_t queries, keys, dim, v_dim;
  double dropout = 0, softcap = 0;
  int64_t reach = kAllEarlier, document = INT64_MAX;  // its length
  double scale = 1;                                   // of scores
};
constexpr int64_t kHeads = 2;

// A sum, and how large what was added is, and what that is a difference of.
struct Sum {
  double value = 0, size = 0, parts = 0;
  void add(double term, double of_parts = 0) { value += term, size += std::fabs(term), parts += of_parts; }
};
using Sums = std::vector<Sum>;

// `rounded`: of each term by rounding a factor of it, and of the result. In fp32 scores, whose products are up to 300
// together, are off by 1.8e-5 a rounding and by chance, as the square root of their number, by up to 1e-4, and
// exponentials by that share; parts, sums of up to 40 products, by 40 units of 2^-24. f16 rounds what is below 2^-14
// by up to 2^-25, in up to 150 terms with another factor of at most 4.
template <class T>
void expect_sums_of(const std::vector<T>& got, const Sums& want, const char* what) {
  const double rounded = std::is_same_v<T, Bf16> ? 0x1p-8 : std::is_same_v<T, F16> ? 0x1p-11 : 0x1p-24;
  const double least = std::is_same_v<T, F16> ? 150 * 4 * 0x1p-25 : 0;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const Sum& sum = want[i];
    const double bound =
        (rounded + 1e-4) * sum.size + 40 * 0x1p-24 * sum.parts + rounded * std::fabs(sum.value) + least;
    ASSERT_LE(std::fabs(double{load(got[i])} - sum.value), bound) << what << " of " << kName<T> << " at " << i;
  }
}

template <class T>
struct Tensors {
  std::vector<T> q, k, v, out, dout;
  std::vector<float> logsumexp;
};

struct Formula {
  Sums out, dq, dk, dv;
};

template <class T>
Formula formula(const AttentionShape& s, const Tensors<T>& x) {
  const int64_t dim = s.head_dim, v_dim = s.v_head_dim;
  const auto at = [](const std::vector<T>& of, int64_t row, int64_t head, int64_t width, int64_t c) {
    return double{load(of[static_cast<size_t>((row * kHeads + head) * width + c)])};
  };
  const auto sum = [](Sums& of, int64_t row, int64_t head, int64_t width, int64_t c) -> Sum& {
    return of[static_cast<size_t>((row * kHeads + head) * width + c)];
  };
  Formula f{Sums(x.out.size()), Sums(x.q.size()), Sums(x.k.size()), Sums(x.v.size())};
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t i = 0; i < s.queries; ++i) {
      const size_t row = static_cast<size_t>(head * s.queries + i);
      double total = 0;
      Sum delta;
      std::vector<double> scores, kept;
      for (int64_t j = 0; j < s.keys; ++j) {
        double score = 0;
        for (int64_t c = 0; c < dim; ++c) score += at(x.q, i, head, dim, c) * at(x.k, j, head, dim, c);
        score *= s.softmax_scale;
        if (s.softcap > 0) score = s.softcap * std::tanh(score / s.softcap);
        const int64_t element = static_cast<int64_t>(row) * s.keys + j;
        const base::PhiloxBlock bits = base::philox4x32(s.dropout.key, static_cast<uint64_t>(element / 4), 7);
        const bool drops = (bits[static_cast<size_t>(element % 4)] >> 8) < s.dropout.probability * 0x1p24;
        scores.push_back(s.sees(0, i, j) ? score : -INFINITY);
        kept.push_back(drops ? 0 : 1 / (1 - s.dropout.probability));
        total += std::exp(scores.back());
      }
      if (total > 0) { EXPECT_NEAR(double{x.logsumexp[row]}, std::log(total), 1e-4); }  // as scores
      for (int64_t c = 0; c < v_dim; ++c) delta.add(at(x.out, i, head, v_dim, c) * at(x.dout, i, head, v_dim, c));
      for (int64_t j = 0; j < s.keys; ++j) {
        const auto n = static_cast<size_t>(j);
        if (scores[n] == -INFINITY) continue;
        const double p = std::exp(scores[n]) / total, given = std::exp(scores[n] - double{x.logsumexp[row]});
        const double slope = s.softcap > 0 ? 1 - scores[n] * scores[n] / (s.softcap * s.softcap) : 1;
        Sum dp;
        for (int64_t c = 0; c < v_dim; ++c) {
          dp.add(at(x.dout, i, head, v_dim, c) * at(x.v, j, head, v_dim, c));
          sum(f.out, i, head, v_dim, c).add(p * kept[n] * at(x.v, j, head, v_dim, c));
          sum(f.dv, j, head, v_dim, c).add(given * kept[n] * at(x.dout, i, head, v_dim, c));
        }
        const double by = given * s.softmax_scale * slope, dscore = (kept[n] * dp.value - delta.value) * by,
                     parts = (kept[n] * dp.size + delta.size) * by;
        for (int64_t c = 0; c < dim; ++c) {
          const double of_q = at(x.q, i, head, dim, c), of_k = at(x.k, j, head, dim, c);
          sum(f.dq, i, head, dim, c).add(dscore * of_k, parts * std::fabs(of_k));
          sum(f.dk, j, head, dim, c).add(dscore * of_q, parts * std::fabs(of_q));
        }
      }
    }
  }
  return f;
}

template <class T>
void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.queries << " queries, " << c.keys << " keys, dim " << c.dim << " v " << c.v_dim
                                  << " dropout " << c.dropout << " reach " << c.reach);
  AttentionShape s;
  s.samples = 1, s.heads = s.groups = kHeads, s.queries = c.queries, s.keys = c.keys;
  s.head_dim = c.dim, s.v_head_dim = c.v_dim, s.softmax_scale = c.scale / std::sqrt(static_cast<double>(c.dim));
  s.reach = c.reach, s.softcap = c.softcap, s.query_rows.first = c.keys - c.queries;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < c.keys; ++i) ids.push_back(i / c.document);
  const DeviceArray<int64_t> documents(ids, Use::in, "documents"), counters({7}, Use::in, "counters");
  s.documents = documents.data(), s.document_stride = c.keys;
  s.dropout = {
      {counters.data(), 1, 0, true, nullptr, c.queries, c.queries}, kHeads * c.queries, c.keys, 99, c.dropout};
  Tensors<T> x{
      made<T>(c.queries * kHeads * c.dim, 0.7),   made<T>(c.keys * kHeads * c.dim, 0.3),
      made<T>(c.keys * kHeads * c.v_dim, 0.9),    made<T>(c.queries * kHeads * c.v_dim, 0.2),
      made<T>(c.queries * kHeads * c.v_dim, 0.5), std::vector<float>(static_cast<size_t>(kHeads * c.queries))};
  for (size_t i = 0; i < x.k.size(); ++i) {  // keys of a row grow, and its scores with them
    const size_t tile = i / static_cast<size_t>(kHeads * c.dim) / 32;
    x.k[i] = store<T>(load(x.k[i]) * static_cast<float>(tile + 1) / 4);
  }
  const auto of = []<class P>(P* data, int64_t dim) {
    return AttentionOperand<P>{data, kHeads * dim, kHeads * dim, dim};
  };
  const DeviceArray<T> q(x.q, Use::in, "q"), k(x.k, Use::in, "k"), v(x.v, Use::in, "v"),
      dout(x.dout, Use::in, "dout"), out(x.out, Use::out, "out"), dq(x.q, Use::out, "dq"), dk(x.k, Use::out, "dk"),
      dv(x.v, Use::out, "dv");
  const DeviceArray<float> logsumexp(x.logsumexp, Use::out, "logsumexp");
  const auto read = [&](const DeviceArray<T>& a, int64_t dim) { return of(static_cast<const T*>(a.data()), dim); };
  attention_forward_cuda<T>(
      {read(q, c.dim), read(k, c.dim), read(v, c.v_dim), of(out.data(), c.v_dim), logsumexp.data()}, s, {}, nullptr);
  attention_backward_cuda<T>(
      {read(q, c.dim), read(k, c.dim), read(v, c.v_dim), read(out, c.v_dim), read(dout, c.v_dim), logsumexp.data(),
       of(dq.data(), c.dim), of(dk.data(), c.dim), of(dv.data(), c.v_dim)},
      s, {}, nullptr);
  x.out = out.values(), x.logsumexp = logsumexp.values();
  const Formula want = formula(s, x);
  expect_sums_of(out.values(), want.out, "out");
  expect_sums_of(dq.values(), want.dq, "dq");
  expect_sums_of(dk.values(), want.dk, "dk");
  expect_sums_of(dv.values(), want.dv, "dv");
}

// Heads that 16 divides or not, last tiles of every size, rows that begin a block of Philox and others, scores that
// rise from tile to tile.
TEST(AttentionFormulaOnHost, FactorsAndResultsAreRoundedAndNothingElse) {
  for (const Case& c : {Case{40, 40, 16, 16}, Case{33, 71, 24, 40, 0.3}, Case{68, 68, 7, 17, 0.1, 2, 20},
                        Case{70, 150, 64, 33, 0.3, 0, 45, 60}, Case{1, 50, 130, 16, 0.2}, Case{20, 36, 352, 8, 0.1},
                        Case{66, 130, 16, 40, 0.2, 0, kAllEarlier, INT64_MAX, 4}}) {
    check<Bf16>(c);
    check<F16>(c);
    check<float>(c);
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host::attention_formula_test
