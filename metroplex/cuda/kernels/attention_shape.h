// What attention is over, and its mask, a function of where rows lie in the whole sequence: a query sees the keys
// that are not behind it, within its reach, and in its document; probabilities are dropped as DropoutShape says.
#pragma once

#include <cstdint>

#include "cuda/kernels/dropout.h"
#include "cuda/kernels/half.h"

namespace metroplex::cuda::kernels {

// [rows, samples, heads, head_dim or v_head_dim], strides in elements, the last one 1. Rows are queries for q, out,
// dout and dq, keys for the others, which have `groups` heads.
template <class T>
struct AttentionOperand {
  T* data = nullptr;
  int64_t row = 0, sample = 0, head = 0;

  constexpr T* at(int64_t of_sample, int64_t of_head, int64_t of_row) const {
    return data + of_sample * sample + of_head * head + of_row * row;
  }
};

// Row i is row first + i of the whole sequence, or chosen[i] where that is not null.
struct AttentionRows {
  int64_t first = 0;
  const int64_t* chosen = nullptr;  // read where the kernel runs

  constexpr int64_t place(int64_t i) const { return chosen == nullptr ? first + i : chosen[i]; }
};

constexpr int64_t kAllEarlier = INT64_MAX;

struct AttentionShape {
  int64_t samples = 0, heads = 0, groups = 0;  // head h reads the keys of group h / (heads / groups)
  int64_t queries = 0, keys = 0, head_dim = 0, v_head_dim = 0;
  double softmax_scale = 0;
  AttentionRows query_rows, key_rows;
  const int64_t* documents = nullptr;  // [samples, whole sequence], read where the kernel runs; null: one document
  int64_t document_stride = 0;         // of a sample
  // Of probabilities [samples, heads, queries, whole keys], sample_major; element `key_rows.chosen[j]` of a row where
  // keys are chosen, else j. Probability 0: nothing is dropped.
  DropoutShape dropout;
  int64_t reach = kAllEarlier;  // how many places behind its own a query still sees
  double softcap = 0;           // scores x are softcap tanh(x / softcap); 0: x

  constexpr int64_t document(int64_t sample, int64_t place) const {
    return documents == nullptr ? 0 : documents[sample * document_stride + place];
  }
  constexpr bool sees(int64_t sample, int64_t query, int64_t key) const {
    const int64_t of_query = query_rows.place(query), of_key = key_rows.place(key);
    return of_key <= of_query && of_query - of_key <= reach && document(sample, of_query) == document(sample, of_key);
  }
};

}  // namespace metroplex::cuda::kernels
