// Shape and mask of attention. The mask depends on the positions of rows in the whole sequence: a query sees keys at
// its own or earlier positions, within its reach, and in its document and chunk. DropoutShape defines the dropout of
// probabilities.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/half.h"

namespace metroplex::kernels {

// [rows, samples, heads, head_dim or v_head_dim], strides in elements, last stride 1. Rows of q, out, dout and dq
// are queries. Rows of the other tensors are keys; these tensors have `groups` heads.
template <class T>
struct AttentionOperand {
  T* data = nullptr;
  int64_t row = 0, sample = 0, head = 0;

  constexpr T* at(int64_t of_sample, int64_t of_head, int64_t of_row) const {
    return data + of_sample * sample + of_head * head + of_row * row;
  }
};

// Row i has position chosen[i] if `chosen` is not null, else first + i.
struct AttentionRows {
  int64_t first = 0;
  const int64_t* chosen = nullptr;  // on the kernel's device

  constexpr int64_t place(int64_t i) const { return chosen == nullptr ? first + i : chosen[i]; }
};

constexpr int64_t kAllEarlier = INT64_MAX;

struct AttentionShape {
  int64_t samples = 0, heads = 0, groups = 0;  // head h uses the keys of group h / (heads / groups)
  int64_t queries = 0, keys = 0, head_dim = 0, v_head_dim = 0;
  double softmax_scale = 0;
  AttentionRows query_rows, key_rows;
  const int64_t* documents = nullptr;  // [samples, whole sequence] on the kernel's device; null: one document
  int64_t document_stride = 0;         // per sample
  // Dropout of probabilities [samples, heads, queries, whole keys], sample_major. Key j is element key_rows.chosen[j]
  // of a row if keys are chosen, else j. Probability 0: off.
  DropoutShape dropout;
  int64_t reach = kAllEarlier;  // maximum distance to earlier keys that a query sees
  int64_t chunk = 0;            // a query sees only keys of its own range of this many positions; 0: off
  double softcap = 0;           // scores x become softcap tanh(x / softcap); 0: off

  // Returns the maximum distance from a query at this position to keys that it sees.
  constexpr int64_t reach_from(int64_t place) const { return chunk > 0 ? place % chunk : reach; }
  constexpr int64_t document(int64_t sample, int64_t place) const {
    return documents == nullptr ? 0 : documents[sample * document_stride + place];
  }
  constexpr bool sees(int64_t sample, int64_t query, int64_t key) const {
    const int64_t of_query = query_rows.place(query), of_key = key_rows.place(key);
    return of_key <= of_query && of_query - of_key <= reach_from(of_query) &&
           document(sample, of_query) == document(sample, of_key);
  }
};

}  // namespace metroplex::kernels
