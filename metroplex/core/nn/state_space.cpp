#include "nn/state_space.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "nn/wide.h"

namespace metroplex::nn {
namespace {

// Rows in chunks: [s, b, g r, d] becomes [b, chunks, g, l, r, d], padded with zeros. A padded row leaves the state
// unchanged, because its dt is 0. Groups of B and C have r = 1.
struct ChunkLayout {
  int64_t s, l, chunks, groups;

  ChunkLayout(const StateSpaceInputs& in, int64_t chunk)
      : s(in.x.size(0)), l(std::min(chunk, s)), chunks((s + l - 1) / l), groups(in.b.size(2)) {}
  at::Tensor split(const at::Tensor& x) const {
    const at::Tensor padded = at::constant_pad_nd(to_wide(x), {0, 0, 0, 0, 0, 0, 0, chunks * l - s});
    return padded.view({chunks, l, x.size(1), groups, x.size(2) / groups, x.size(3)}).permute({2, 0, 3, 1, 4, 5});
  }
  at::Tensor join(const at::Tensor& x) const {
    return x.permute({1, 3, 0, 2, 4, 5})
        .reshape({chunks * l, x.size(0), groups * x.size(4), x.size(5)})
        .narrow(0, 0, s);
  }
  // [b, s] -> [b, chunks, l]; padded rows belong to the last document.
  at::Tensor split_documents(const at::Tensor& ids) const {
    const at::Tensor last = ids.narrow(1, s - 1, 1).expand({ids.size(0), chunks * l - s});
    return at::cat({ids, last}, 1).view({ids.size(0), chunks, l});
  }
};

at::Tensor decay(const at::Tensor& logarithm, const at::Tensor& hidden) {
  return at::exp(hidden.defined() ? logarithm.masked_fill(hidden, -std::numeric_limits<double>::infinity())
                                  : logarithm);
}

struct Chunks {
  ChunkLayout layout;
  at::Tensor u;        // dt x
  at::Tensor summing;  // [l, l]: 1 for earlier rows and the row itself
  at::Tensor b, c;     // [b, chunks, g, l, n]
  // Products of exp(dt a): over the rows j < k <= i of a chunk, [b, chunks, g, r, l (i), l (j)]; from the chunk's
  // begin to each row, and from each row to its end, [b, chunks, g, l, r, 1]; over the chunk, [b, chunks, g, 1, r,
  // 1]. 0 between rows of different documents.
  at::Tensor between, from_begin, to_end, over;
  std::vector<at::Tensor> states;  // before each chunk, and after the last one: [b, g, n, r, p]

  Chunks(const StateSpaceInputs& in, int64_t chunk) : layout(in, chunk) {
    const at::Tensor dt = to_wide(in.dt).unsqueeze(3);
    u = layout.split(to_wide(in.x) * dt);
    b = layout.split(in.b).squeeze(4), c = layout.split(in.c).squeeze(4);
    const at::Tensor logarithms = layout.split(dt * to_wide(in.a).unsqueeze(1)).squeeze(5);
    summing = at::ones({layout.l, layout.l}, logarithms.options()).tril();
    set_decays(at::matmul(summing, logarithms).unsqueeze(5),
               in.documents.defined() ? layout.split_documents(in.documents) : at::Tensor());
    pass_states(in.state);
  }
  // `ids`: [b, chunks, l], or undefined.
  void set_decays(const at::Tensor& sums, const at::Tensor& ids) {
    const at::Tensor of_head = sums.squeeze(5).transpose(3, 4);  // [b, chunks, g, r, l]
    at::Tensor hidden = summing.eq(0);
    at::Tensor other_than_last, other_than_previous, ends;
    if (ids.defined()) {
      const auto rows = [](const at::Tensor& x) { return x.view({x.size(0), x.size(1), 1, x.size(2), 1, 1}); };
      const at::Tensor last = ids.narrow(2, layout.l - 1, 1);
      const at::Tensor previous =
          at::cat({ids.narrow(1, 0, 1).narrow(2, 0, 1), last.narrow(1, 0, layout.chunks - 1)}, 1);
      hidden = hidden.bitwise_or(ids.unsqueeze(3).ne(ids.unsqueeze(2))).unsqueeze(2).unsqueeze(3);
      other_than_last = rows(ids.ne(last)), other_than_previous = rows(ids.ne(previous)),
      ends = rows(last.ne(previous));
    }
    between = decay(of_head.unsqueeze(5) - of_head.unsqueeze(4), hidden);
    const at::Tensor total = sums.narrow(3, layout.l - 1, 1);
    from_begin = decay(sums, other_than_previous);
    to_end = decay(total - sums, other_than_last);
    over = decay(total, ends);
  }
  void pass_states(const at::Tensor& before) {
    const at::Tensor added = at::matmul(b.transpose(3, 4), (u * to_end).flatten(4)).unflatten(4, u.sizes().slice(4));
    states = {before.defined() ? before : at::zeros_like(added.select(1, 0))};
    for (int64_t i = 0; i < layout.chunks; ++i)
      states.push_back(at::addcmul(added.select(1, i), states.back(), over.select(1, i)));
  }
  at::Tensor mixing() const { return at::matmul(c, b.transpose(3, 4)).unsqueeze(3) * between; }  // [.., r, l, l]
  at::Tensor states_before() const { return at::stack(at::TensorList(states).slice(0, states.size() - 1), 1); }
  // S^T C for the states before the chunks, without their decay: [b, chunks, g, l, r, p].
  at::Tensor read(const at::Tensor& before) const {
    return at::matmul(c, before.flatten(4)).unflatten(4, u.sizes().slice(4));
  }
};

}  // namespace

StateSpaceResult recurrent_state_space(const StateSpaceInputs& in) {
  const int64_t rows = in.x.size(0), batch = in.x.size(1), groups = in.b.size(2), heads = in.x.size(2) / groups;
  const at::Tensor dt = to_wide(in.dt), decays = at::exp(dt * to_wide(in.a)), u = to_wide(in.x) * dt.unsqueeze(3);
  const auto by_group = [&](const at::Tensor& x, int64_t row) {
    return x.select(0, row).unflatten(1, {groups, heads}).unsqueeze(2);  // [b, g, 1, r, ...]
  };
  const auto matrix = [&](const at::Tensor& x, int64_t row) {
    return to_wide(x).select(0, row).unsqueeze(3).unsqueeze(4);
  };
  at::Tensor state =
      in.state.defined() ? in.state : at::zeros({batch, groups, in.b.size(3), heads, in.x.size(3)}, u.options());
  std::vector<at::Tensor> y;
  for (int64_t row = 0; row < rows; ++row) {
    if (in.documents.defined() && row > 0) {
      const at::Tensor same = in.documents.select(1, row).eq(in.documents.select(1, row - 1));
      state = state * same.to(state.scalar_type()).view({batch, 1, 1, 1, 1});
    }
    state = state * by_group(decays, row).unsqueeze(4) + matrix(in.b, row) * by_group(u, row);
    y.push_back((state * matrix(in.c, row)).sum(2).flatten(1, 2));
  }
  return {at::stack(y), state};
}

StateSpaceResult chunked_state_space(const StateSpaceInputs& in, int64_t chunk) {
  const Chunks chunks(in, chunk);
  const at::Tensor inside = at::matmul(chunks.mixing(), chunks.u.transpose(3, 4)).transpose(3, 4);
  const at::Tensor y = at::addcmul(inside, chunks.read(chunks.states_before()), chunks.from_begin);
  return {chunks.layout.join(y), chunks.states.back()};
}

at::Tensor apply_state_space(StateSpaceInputs in, int64_t chunk, KvCache::Recurrent* cache) {
  if (cache != nullptr) in.state = cache->state;
  const StateSpaceResult result = in.state.defined() ? recurrent_state_space(in) : chunked_state_space(in, chunk);
  if (cache != nullptr) cache->state = result.state;
  return result.y;
}

StateSpaceGradients chunked_state_space_backward(const at::Tensor& dy_sbhp, const StateSpaceInputs& in,
                                                 int64_t chunk) {
  const Chunks chunks(in, chunk);
  const ChunkLayout& layout = chunks.layout;
  const at::Tensor dy = layout.split(dy_sbhp), u = chunks.u, before = chunks.states_before();
  // Gradients of the states, from the last chunk to the first.
  const at::Tensor dy_begin = dy * chunks.from_begin;
  const at::Tensor dbefore =
      at::matmul(chunks.c.transpose(3, 4), dy_begin.flatten(4)).unflatten(4, u.sizes().slice(4));
  std::vector<at::Tensor> after(static_cast<size_t>(layout.chunks));
  at::Tensor next = at::zeros_like(chunks.states[0]);
  for (int64_t i = layout.chunks; i-- > 0;) {
    after[static_cast<size_t>(i)] = next;
    next = at::addcmul(dbefore.select(1, i), next, chunks.over.select(1, i));
  }
  const at::Tensor dafter = at::stack(after, 1);
  // Inside the chunks: y_i = sum_j (c_i b_j) between_ij u_j.
  const at::Tensor mixing = chunks.mixing(), dy_head = dy.transpose(3, 4);
  const at::Tensor dmixing = at::matmul(dy_head, u.permute({0, 1, 2, 4, 5, 3}));
  const at::Tensor dproducts = (dmixing * chunks.between).sum(3);  // [.., l, l]
  const at::Tensor du = at::matmul(mixing.transpose(4, 5), dy_head).transpose(3, 4) +
                        at::matmul(chunks.b, dafter.flatten(4)).unflatten(4, u.sizes().slice(4)) * chunks.to_end;
  const at::Tensor db = at::matmul(dproducts.transpose(3, 4), chunks.c) +
                        at::matmul((u * chunks.to_end).flatten(4), dafter.flatten(4).transpose(3, 4));
  const at::Tensor dc =
      at::matmul(dproducts, chunks.b) + at::matmul(dy_begin.flatten(4), before.flatten(4).transpose(3, 4));
  // Gradient of the sums of log decays. Row i adds its sum to the exponents of its results, dy_i y_i, and subtracts
  // it from those of its inputs, u_i du_i. The chunk's last sum is added to the exponents of the state after it.
  at::Tensor dsums = (dmixing * mixing).sum(5).transpose(3, 4) + (dy_begin * chunks.read(before)).sum(5) -
                     (u * du).sum(5);  // [b, chunks, g, l, r]
  const at::Tensor states_after = at::stack(at::TensorList(chunks.states).slice(1), 1);
  dsums.select(3, layout.l - 1).add_((states_after * dafter).sum(at::IntArrayRef({3, 5})));
  const at::Tensor dlog = layout.join(at::matmul(chunks.summing.t(), dsums).unsqueeze(5)).squeeze(3);  // of dt a
  const at::Tensor du_sbhp = layout.join(du), dt = to_wide(in.dt);
  return {du_sbhp * dt.unsqueeze(3), (du_sbhp * to_wide(in.x)).sum(3) + dlog * to_wide(in.a),
          (dlog * dt).sum(at::IntArrayRef({0, 1})), layout.join(db.unsqueeze(4)), layout.join(dc.unsqueeze(4))};
}

}  // namespace metroplex::nn
