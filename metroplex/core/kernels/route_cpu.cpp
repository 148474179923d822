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

  explicit Room(const RouteShape& shape)
      : values(static_cast<size_t>(shape.k)),
        group_values(static_cast<size_t>(shape.groups_chosen)),
        groups(static_cast<size_t>(shape.groups_chosen)) {}
};

template <class T>
void choose_row(const RouteForward<T>& forward, const RouteShape& shape, const RowSoftmax<T>& all, Room<T>& room) {
  Best<T> best{shape.k, room.values.data(), forward.experts};
  const auto add_all = [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) best.add(compared(forward, shape, e), e);
  };
  if (shape.groups == 0) return add_all(0, shape.experts);
  Best<T> groups{shape.groups_chosen, room.group_values.data(), room.groups.data()};
  for (int64_t g = 0; g < shape.groups; ++g) groups.add(group_score(forward, shape, all, g), g);
  std::sort(room.groups.begin(), room.groups.end());
  const int64_t of_group = shape.experts / shape.groups;
  for (const int64_t g : room.groups) add_all(g * of_group, (g + 1) * of_group);
}

template <class T>
void forward_row(const RouteForward<T>& forward, const RouteShape& shape, Room<T>& room) {
  const bool whole = shape.score == RouteScore::softmax_of_all;
  const RowSoftmax<T> all = whole ? row_softmax(forward.logits, shape.experts) : RowSoftmax<T>();
  if (!shape.chosen) choose_row(forward, shape, all, room);
  chosen_probs(forward.logits, forward.experts, forward.probs, all, shape);
}

template <class T>
void backward_row(const RouteBackward<T>& backward, const RouteShape& shape) {
  const bool whole = shape.score == RouteScore::softmax_of_all;
  const RowSoftmax<T> all = whole ? row_softmax(backward.logits, shape.experts) : RowSoftmax<T>();
  std::fill(backward.dlogits, backward.dlogits + shape.experts, T(0));
  const T mean = chosen_gradients(backward, all, shape);
  if (!whole) return;
  for (int64_t e = 0; e < shape.experts; ++e) {
    const bool chosen = std::find(backward.experts, backward.experts + shape.k, e) != backward.experts + shape.k;
    if (!chosen) backward.dlogits[e] = -mean * std::exp(backward.logits[e] - all.largest) / all.sum;
  }
}

int64_t grain(const RouteShape& shape) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, shape.experts)); }

}  // namespace

template <class T>
void route_forward(const RouteForward<T>& forward, const RouteShape& shape) {
  at::parallel_for(0, shape.tokens, grain(shape), [&](int64_t begin, int64_t end) {
    Room<T> room(shape);
    for (int64_t t = begin; t < end; ++t) forward_row(forward.row(t, shape), shape, room);
  });
}

template <class T>
void route_backward(const RouteBackward<T>& backward, const RouteShape& shape) {
  at::parallel_for(0, shape.tokens, grain(shape), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      backward_row<T>({backward.dprobs + t * shape.k, backward.logits + t * shape.experts,
                       backward.experts + t * shape.k, backward.dlogits + t * shape.experts},
                      shape);
  });
}

#define MPX_INSTANTIATE(T)                                                   \
  template void route_forward<T>(const RouteForward<T>&, const RouteShape&); \
  template void route_backward<T>(const RouteBackward<T>&, const RouteShape&)
MPX_INSTANTIATE(float);
MPX_INSTANTIATE(double);

}  // namespace metroplex::kernels
