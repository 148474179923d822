// What a microbatch brings to every layer beside the activations. The same on every pipeline stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace metroplex::nn {

struct KvCache;  // kv_cache.h

// Consecutive positions [first, first + count) of a sequence.
struct RowRun {
  int64_t first = 0, count = 0;
};

// Which keys travel between the ranks of a context-parallel group, as numbers of rows of the rank that has them:
// those that some query of another rank sees. By index in the group; those of a rank itself do not travel.
struct KeyTravel {
  std::vector<std::vector<RowRun>> sent;      // of the own rows, to each rank
  std::vector<std::vector<RowRun>> received;  // of the rows of each rank
};
int64_t num_rows(const std::vector<RowRun>& runs);
// Of rows that lie in `runs` one after the other, numbers first to first + count, in runs.
std::vector<RowRun> cut_runs(const std::vector<RowRun>& runs, int64_t first, int64_t count);

// The positions of the s rows of a tensor in the whole sequence: row i has position first + i; or, where `rows` is
// defined, rows[i].
struct Positions {
  int64_t first = 0;
  at::Tensor rows;                // [s] int64, in any order
  int64_t whole = 0;              // with `rows`: how many the whole sequence has
  std::vector<RowRun> runs = {};  // `rows` for the host; empty: it does not know them
};

struct Microbatch {
  at::Tensor tokens;        // [b, s] int64
  at::Tensor labels;        // [b, s] int64; undefined: the head returns logits instead of a loss
  at::Tensor loss_mask;     // [b, s] at least fp32
  double mask_sum = 0;      // of the whole sequence's loss_mask, whatever part of it is here
  at::Tensor position_ids;  // [b, s] int64
  at::Tensor document_ids;  // [b, whole s] int64: attention stays inside a document; undefined: off
  // [n + 1] int64: where each of n documents begins, rows counted from sample to sample, then b whole s: the last
  // ones may be empty. Undefined: document_ids alone say it, and attention of variable lengths is not for this
  // microbatch.
  at::Tensor document_offsets;
  // The documents of document_offsets for the host, in the same rows, of a rank that has part of the sequence. Empty:
  // it does not know them.
  std::vector<RowRun> document_runs;
  // [b] int64, contiguous, on the device of the activations, sharing a storage with `step` only: the Philox counters
  // of dropout, see counters_of_samples(). Read in training only.
  at::Tensor sample_counters;
  at::Tensor step;           // [1] int64 on that device: the number of the step; what needs it asserts it
  bool training = true;      // dropout is active only here
  KvCache* cache = nullptr;  // generation only

  // Where a rank has only part of the sequence (context parallelism): the positions of its s rows in the whole one,
  // [s] int64, contiguous; `row_runs` is the same list for the host. Undefined and empty: row i has position i,
  // counted from the length of the cache.
  at::Tensor rows;
  std::vector<RowRun> row_runs;
  int64_t full_seq_len = 0;  // of the whole sequence
  at::Tensor all_rows;       // [cp, s] int64: `rows` of all context-parallel ranks, in group order
  // Where ranks have different numbers of rows, which of all_rows are those of each; all_rows is [whole s] then.
  std::vector<RowRun> rank_rows;
  std::vector<RowRun> all_runs;  // all_rows for the host; empty: it does not know them
  // Empty: all keys travel, and ranks have equally many rows. `keys_of_groups` is between the groups of a2a+p2p,
  // which hold the rows of their ranks in order.
  KeyTravel keys, keys_of_groups;

  // Hybrid context parallelism, where a microbatch has some documents of a sample, and all_rows their positions: by
  // how many ranks it is shared (0: by the group that layers are made with), whether this rank counts its tokens, and
  // how many samples the step has over all ranks.
  int64_t context_ranks = 0;
  bool counts_tokens = true;
  int64_t samples_of_step = 0;
};

// All tensors of a microbatch, under their names.
struct MicrobatchTensor {
  const char* name;
  at::Tensor Microbatch::*tensor;
};
inline constexpr MicrobatchTensor kMicrobatchTensors[] = {{"tokens", &Microbatch::tokens},
                                                          {"labels", &Microbatch::labels},
                                                          {"loss_mask", &Microbatch::loss_mask},
                                                          {"position_ids", &Microbatch::position_ids},
                                                          {"document_ids", &Microbatch::document_ids},
                                                          {"document_offsets", &Microbatch::document_offsets},
                                                          {"sample_counters", &Microbatch::sample_counters},
                                                          {"step", &Microbatch::step},
                                                          {"rows", &Microbatch::rows},
                                                          {"all_rows", &Microbatch::all_rows}};

// How large a microbatch of whole sequences is, and where it lies.
struct MicrobatchForm {
  int64_t samples = 0, seq_length = 0;
  bool documents = false;  // attention stays inside one
  at::ScalarType float_type = at::kFloat;
  at::Device device = at::kCPU;
  int64_t max_documents = 0;  // of a sample, where there are offsets
};
// With all tensors that a training step reads, their values unset.
Microbatch empty_microbatch(const MicrobatchForm& form);
// Microbatch::document_offsets [b most + 1] of document_ids [b, s] on the host, in which the rows of a document
// follow one another; undefined where there are more than b most documents.
at::Tensor document_offsets(const at::Tensor& document_ids, int64_t most);
// Makes `sample_counters` and `step` views of `both` [b + 1] int64.
void place_counters(Microbatch& batch, const at::Tensor& both);
// Sets `sample_counters` and `step` of `batch`, in one storage, for samples with the global indices `numbers` [b]
// (int64, on the host).
void set_counters(Microbatch& batch, int64_t step, const at::Tensor& numbers);
// mix(step) + number for each of `numbers`. Kernels read the counters from device memory, so that the replay of a
// graph draws new masks.
at::Tensor counters_of_samples(int64_t step, const at::Tensor& numbers);

// The rows of `batch`. Asserts that tensor and runs agree in length and stay inside the whole sequence.
Positions sequence_positions(const Microbatch& batch);

// x.index_select(dim, rows), on the meta device too, where libtorch has none.
at::Tensor select_rows(const at::Tensor& x, int64_t dim, const at::Tensor& rows);

}  // namespace metroplex::nn
