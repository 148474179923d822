#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/route_math.h"

#pragma GCC optimize("O3")

namespace metroplex::kernels {
namespace {

template <class T>
RowSoftmax<T> row_softmax(const T* x, int64_t n) {
  RowSoftmax<T> all;
  all.largest = x[0];
  for (int64_t e = 1; e < n; ++e) all.largest = x[e] > all.largest ? x[e] : all.largest;
  all.sum = 0;
  for (int64_t e = 0; e < n; ++e) all.sum += std::exp(x[e] - all.largest);
  return all;
}

// Keeps the best values passed to add() in descending order, by insertion. Values must be added in ascending order of
// places.
template <class T>
struct Best {
  int64_t most;
  T* values;
  int64_t* places;
  int64_t known = 0;

  void add(T value, int64_t place) {
    if (known == most && !(value > values[most - 1])) return;
    int64_t at = std::min(known, most - 1);
    for (; at > 0 && value > values[at - 1]; --at) {
      values[at] = values[at - 1];
      places[at] = places[at - 1];
    }
    values[at] = value;
    places[at] = place;
    known = std::min(known + 1, most);
  }
};

template <class T>
struct Room {
  std::vector<T> values, group_values;
  std::vector<int64_t> groups;

  explicit Room(const RouteShape& s)
      : values(static_cast<size_t>(s.k)),
        group_values(static_cast<size_t>(s.groups_chosen)),
        groups(static_cast<size_t>(s.groups_chosen)) {}
};

template <class T>
void choose_row(const RouteForward<T>& o, const RouteShape& s, const RowSoftmax<T>& all, Room<T>& room) {
  Best<T> best{s.k, room.values.data(), o.experts};
  const auto add_all = [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) best.add(compared(o, s, e), e);
  };
  if (s.groups == 0) return add_all(0, s.experts);
  Best<T> groups{s.groups_chosen, room.group_values.data(), room.groups.data()};
  for (int64_t g = 0; g < s.groups; ++g) groups.add(group_score(o, s, all, g), g);
  std::sort(room.groups.begin(), room.groups.end());
  const int64_t of_group = s.experts / s.groups;
  for (const int64_t g : room.groups) add_all(g * of_group, (g + 1) * of_group);
}

template <class T>
void forward_row(const RouteForward<T>& o, const RouteShape& s, Room<T>& room) {
  const bool whole = s.score == RouteScore::softmax_of_all;
  const RowSoftmax<T> all = whole ? row_softmax(o.logits, s.experts) : RowSoftmax<T>();
  if (!s.chosen) choose_row(o, s, all, room);
  chosen_probs(o.logits, o.experts, o.probs, all, s);
}

template <class T>
void backward_row(const RouteBackward<T>& o, const RouteShape& s) {
  const bool whole = s.score == RouteScore::softmax_of_all;
  const RowSoftmax<T> all = whole ? row_softmax(o.logits, s.experts) : RowSoftmax<T>();
  std::fill(o.dlogits, o.dlogits + s.experts, T(0));
  const T mean = chosen_gradients(o, all, s);
  if (!whole) return;
  for (int64_t e = 0; e < s.experts; ++e) {
    const bool chosen = std::find(o.experts, o.experts + s.k, e) != o.experts + s.k;
    if (!chosen) o.dlogits[e] = -mean * std::exp(o.logits[e] - all.largest) / all.sum;
  }
}

int64_t grain(const RouteShape& s) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, s.experts)); }

}  // namespace

template <class T>
void route_forward(const RouteForward<T>& o, const RouteShape& s) {
  at::parallel_for(0, s.tokens, grain(s), [&](int64_t begin, int64_t end) {
    Room<T> room(s);
    for (int64_t t = begin; t < end; ++t) forward_row(o.row(t, s), s, room);
  });
}

template <class T>
void route_backward(const RouteBackward<T>& o, const RouteShape& s) {
  at::parallel_for(0, s.tokens, grain(s), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      backward_row<T>({o.dprobs + t * s.k, o.logits + t * s.experts, o.experts + t * s.k, o.dlogits + t * s.experts},
                      s);
  });
}

#define MPX_INSTANTIATE(T)                                                   \
  template void route_forward<T>(const RouteForward<T>&, const RouteShape&); \
  template void route_backward<T>(const RouteBackward<T>&, const RouteShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::kernels
