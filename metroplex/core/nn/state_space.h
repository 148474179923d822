// The recurrence of Mamba-2 (Dao, Gu: state space duality, arXiv:2405.21060), per head with state S [n, p]:
//   S_t = exp(dt_t a) S_(t-1) + dt_t B_t x_t^T,   y_t = S_t^T C_t.
// The chunked form computes each chunk by matrix products and passes states from chunk to chunk. All values are
// computed and returned in at least fp32.
// Shapes: s sequence, b microbatch, h heads of p channels, g groups of h / g heads, n state size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/kv_cache.h"

namespace metroplex::nn {

struct StateSpaceInputs {
  at::Tensor x;     // [s, b, h, p]
  at::Tensor dt;    // [s, b, h]
  at::Tensor a;     // [h], negative
  at::Tensor b, c;  // [s, b, g, n]; the heads of a group are adjacent
  // [b, s] int64, equal for the adjacent rows of a document: its first row starts from a zero state. If undefined,
  // the rows are one document.
  at::Tensor documents;
  at::Tensor state;  // [b, g, n, h / g, p] before the first row; undefined: zero
};
struct StateSpaceResult {
  at::Tensor y;      // [s, b, h, p]
  at::Tensor state;  // after the last row
};
// One row after the other: for generation, and the reference of the chunked form.
StateSpaceResult recurrent_state_space(const StateSpaceInputs& in);
// Chunks of at most `chunk` rows. Needs memory for b h s chunk elements.
StateSpaceResult chunked_state_space(const StateSpaceInputs& in, int64_t chunk);
// Returns y. Continues the state of `cache` row by row if it has one, else computes chunks; stores the state after
// the last row. `cache` may be null.
at::Tensor apply_state_space(StateSpaceInputs in, int64_t chunk, KvCache::Recurrent* cache);

struct StateSpaceGradients {
  at::Tensor x, dt, a, b, c;
};
// Backward of the chunked form for dy [s, b, h, p], without a gradient of the states before and after the rows.
StateSpaceGradients chunked_state_space_backward(const at::Tensor& dy, const StateSpaceInputs& in, int64_t chunk);

}  // namespace metroplex::nn
