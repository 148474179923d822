#include "cuda/kernels/blocked_attention.h"
#include "kernels_on_host/twins.h"
#include "support/everyday.h"

namespace metroplex::kernels_on_host::attention_test {
namespace {

// Causal over all rows, or over chosen ones in no order; with documents and dropout.
struct Case {
  int64_t samples, heads, groups, s, dim, v_dim;
  double dropout = 0;
  bool documents = false, chosen = false;
  int64_t reach = kAllEarlier;
  double softcap = 0;
};

template <class T>
void check(const Case& c) {
  using W = Wide<T>;
  AttentionShape s;
  s.samples = c.samples, s.heads = c.heads, s.groups = c.groups, s.queries = s.keys = c.s;
  s.head_dim = c.dim, s.v_head_dim = c.v_dim, s.softmax_scale = 1 / std::sqrt(static_cast<double>(c.dim));
  s.reach = c.reach, s.softcap = c.softcap;
  std::vector<int64_t> documents, rows;
  const std::vector<int64_t> counters{7, 9, 11};
  for (int64_t i = 0; i < c.samples * c.s; ++i) documents.push_back(i % std::max<int64_t>(1, c.s) / 5);
  for (int64_t i = 0; i < c.s; ++i) rows.push_back(i % 2 == 0 ? i : c.s / 2 * 2 - i);
  s.document_stride = c.s;
  s.dropout = {{nullptr, c.samples, 3 * c.s, true, nullptr, c.s, c.s}, c.samples * c.heads * c.s, c.s, 99, c.dropout};
  const auto placed = [&](const int64_t* ids, const int64_t* chosen, const int64_t* counter) {
    AttentionShape shape = s;
    shape.documents = c.documents ? ids : nullptr;
    shape.query_rows.chosen = shape.key_rows.chosen = shape.dropout.rows.chosen = c.chosen ? chosen : nullptr;
    shape.dropout.rows.counters = counter;
    return shape;
  };
  const auto strided = [&]<class P>(P* data, int64_t heads, int64_t dim) {
    return AttentionOperand<P>{data, c.samples * heads * dim, heads * dim, dim};
  };
  const auto of = [&]<class P>(P* data, int64_t heads) { return strided(data, heads, c.dim); };
  const auto of_v = [&]<class P>(P* data, int64_t heads) { return strided(data, heads, c.v_dim); };
  const int64_t tokens = c.s * c.samples;
  const std::vector<T> q = made<T>(tokens * c.heads * c.dim, 0.7), k = made<T>(tokens * c.groups * c.dim, 0.3),
                       v = made<T>(tokens * c.groups * c.v_dim, 0.9), dout = made<T>(tokens * c.heads * c.v_dim, 0.5);
  std::vector<T> out(dout.size()), dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<W> logsumexp(static_cast<size_t>(c.samples * c.heads * c.s));
  const AttentionShape here = placed(documents.data(), rows.data(), counters.data());
  AttentionScratch scratch = attention_backward_scratch<T>(here, 1), forward = attention_forward_scratch<T>(here, 1);
  scratch.bytes = std::max(scratch.bytes, forward.bytes);
  std::vector<char> room(static_cast<size_t>(scratch.bytes) + 64);
  scratch.data = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64);
  attention_forward<T>({of(q.data(), c.heads), of(k.data(), c.groups), of_v(v.data(), c.groups),
                        of_v(out.data(), c.heads), logsumexp.data()},
                       here, scratch);
  attention_backward<T>(
      {of(q.data(), c.heads), of(k.data(), c.groups), of_v(v.data(), c.groups),
       of_v(static_cast<const T*>(out.data()), c.heads), of_v(dout.data(), c.heads), logsumexp.data(),
       of(dq.data(), c.heads), of(dk.data(), c.groups), of_v(dv.data(), c.groups)},
      here, scratch);
  const size_t shift = c.chosen ? 1 : 0;
  const auto got = in_all_orders([&] {
    const DeviceArray<T> gq(q, Use::in, "q", shift), gk(k, Use::in, "k", shift), gv(v, Use::in, "v", shift),
        gout(out, Use::out, "out", shift), gdout(dout, Use::in, "dout", shift), gdq(dq, Use::out, "dq", shift),
        gdk(dk, Use::out, "dk", shift), gdv(dv, Use::out, "dv", shift), same(out, Use::in, "out", shift);
    const DeviceArray<W> gsums(logsumexp, Use::out, "logsumexp", shift), sums(logsumexp, Use::in, "logsumexp", shift);
    const DeviceArray<int64_t> ids(documents, Use::in, "documents"), chosen(rows, Use::in, "rows"),
        counter(counters, Use::in, "counters");
    const AttentionShape there = placed(ids.data(), chosen.data(), counter.data());
    const auto read = [&](const DeviceArray<T>& x, int64_t heads) {
      return of(static_cast<const T*>(x.data()), heads);
    };
    const auto read_v = [&](const DeviceArray<T>& x, int64_t heads) {
      return of_v(static_cast<const T*>(x.data()), heads);
    };
    attention_forward_cuda<T>(
        {read(gq, c.heads), read(gk, c.groups), read_v(gv, c.groups), of_v(gout.data(), c.heads), gsums.data()},
        there, {}, nullptr);
    attention_backward_cuda<T>(
        {read(gq, c.heads), read(gk, c.groups), read_v(gv, c.groups), read_v(same, c.heads), read_v(gdout, c.heads),
         sums.data(), of(gdq.data(), c.heads), of(gdk.data(), c.groups), of_v(gdv.data(), c.groups)},
        there, {}, nullptr);
    return std::tuple{gout.values(), gsums.values(), gdq.values(), gdk.values(), gdv.values()};
  });
  // Both round probabilities (the results are of values up to 3 / 0.7) and gradients of scores, up to c.s terms of
  // size 27, to T, each by half a unit at most, against different bases and so not to the same value; gradients
  // cancel.
  const double terms = 27.0 * static_cast<double>(c.s);
  const std::vector<double> rows_of(out.size(), 9), of_q(q.size(), terms), of_k(k.size(), terms * 3),
      of_values(v.size(), terms * 3);
  expect_twins(std::get<0>(got), out, "out", rows_of);
  expect_twins(std::get<1>(got), logsumexp, "logsumexp");
  expect_twins(std::get<2>(got), dq, "dq", of_q);
  expect_twins(std::get<3>(got), dk, "dk", of_k);
  expect_twins(std::get<4>(got), dv, "dv", of_values);
}

TEST(AttentionOnHost, IsTheTwinOfTheCpu) {
  std::vector<Case> all;
  for (const double dropout : {0.0, 0.3}) {
    for (const bool documents : {false, true}) {
      for (const bool chosen : {false, true}) {
        for (Case c : {Case{2, 4, 2, 37, 8, 8}, Case{1, 3, 1, 33, 5, 5}, Case{1, 1, 1, 1, 130, 130},
                       Case{2, 2, 2, 0, 8, 8}, Case{1, 4, 2, 37, 8, 3}, Case{2, 2, 1, 33, 3, 5},
                       Case{1, 1, 1, 35, 7, 130}, Case{1, 1, 1, 35, 130, 7}}) {
          c.dropout = dropout, c.documents = documents, c.chosen = chosen;
          all.push_back(c);
          if (c.s < 33) continue;
          c.reach = 9;  // less than the 32 rows of the largest tile: some tiles are out of reach
          all.push_back(c);
          c.reach = 0, c.softcap = 0.8;
          all.push_back(c);
        }
      }
    }
  }
  // Several tiles of queries, rows of whole blocks of Philox; heads of several steps of a product.
  for (Case c : {Case{1, 2, 1, 132, 16, 24}, Case{1, 1, 1, 50, 64, 64}, Case{1, 1, 1, 18, 192, 128}}) {
    c.dropout = 0.3;
    all.push_back(c);
    c.documents = c.chosen = true, c.reach = 40, c.softcap = 5;
    all.push_back(c);
  }
  const auto trace = [](const Case& c) {
    return testing::Message() << "s " << c.s << " dim " << c.dim << " v " << c.v_dim << " dropout " << c.dropout
                              << " documents " << c.documents << " chosen " << c.chosen << " reach " << c.reach
                              << " cap " << c.softcap;
  };
  for (const Case& c : all) {
    SCOPED_TRACE(trace(c));
    check<float>(c);
  }
  for (const Case& c : test::everyday(all, 2)) {
    SCOPED_TRACE(trace(c));
    check<Bf16>(c);
  }
  for (const Case& c : test::everyday(all, 3)) {
    SCOPED_TRACE(trace(c));
    check<double>(c);
    check<F16>(c);
  }
}

// 352 and 480 are the last that tensor cores take backward and forward.
TEST(AttentionOnHost, HeadsOfAnySizeMultiply) {
  for (const auto& [dim, v_dim] :
       {std::pair{352, 352}, std::pair{353, 16}, std::pair{480, 480}, std::pair{16, 481}, std::pair{1023, 1025}}) {
    SCOPED_TRACE(testing::Message() << "dim " << dim << " v " << v_dim);
    check<Bf16>({1, 2, 1, 5, dim, v_dim, 0.3});
    check<float>({1, 2, 1, 5, dim, v_dim, 0.3});
  }
}

}  // namespace
}  // namespace metroplex::kernels_on_host::attention_test
