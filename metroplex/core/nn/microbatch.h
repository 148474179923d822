// Data of a microbatch other than activations, passed to every layer. It is the same on every pipeline stage.
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

// Rows of keys exchanged between the ranks of a context-parallel group: those that a query of another rank sees. Rows
// are numbered on their owner. Lists are indexed by rank in the group; the lists of the rank itself are unused.
struct KeyTravel {
  std::vector<std::vector<RowRun>> sent;      // local rows, for each destination rank
  std::vector<std::vector<RowRun>> received;  // rows of each source rank
};
int64_t num_rows(const std::vector<RowRun>& runs);
// Returns the positions of rows [first, first + count) of a tensor whose consecutive rows have the positions `runs`.
std::vector<RowRun> cut_runs(const std::vector<RowRun>& runs, int64_t first, int64_t count);

// Positions of the s rows of a tensor in the whole sequence: row i has position rows[i] if `rows` is defined, else
// first + i.
struct Positions {
  int64_t first = 0;
  at::Tensor rows;                // [s] int64, in any order
  int64_t whole = 0;              // length of the whole sequence; only with `rows`
  std::vector<RowRun> runs = {};  // host copy of `rows` as ranges; empty: unavailable
};

struct Microbatch {
  at::Tensor tokens;        // [b, s] int64
  at::Tensor labels;        // [b, s] int64; undefined: the head returns logits instead of a loss
  at::Tensor loss_mask;     // [b, s] at least fp32
  double mask_sum = 0;      // sum of loss_mask over the whole sequence, on every rank
  at::Tensor position_ids;  // [b, s] int64
  at::Tensor document_ids;  // [b, whole s] int64: attention stays inside a document; undefined: off
  // [n + 1] int64: first row of each of n documents, rows counted over all samples, then b * whole s. The last
  // documents may be empty. If undefined, only document_ids define the documents, and variable-length attention is
  // not used.
  at::Tensor document_offsets;
  // Host copy of document_offsets as row ranges, on a rank that has part of the sequence. Empty: unavailable.
  std::vector<RowRun> document_runs;
  // Philox counters of dropout, see counters_of_samples(): [b] int64, contiguous, on the device of the activations,
  // in one storage with `step`. Only training reads them.
  at::Tensor sample_counters;
  at::Tensor step;           // [1] int64 on that device: step number; its readers assert that it is defined
  bool training = true;      // dropout is active only in training
  KvCache* cache = nullptr;  // generation only

  // Context parallelism: positions of this rank's s rows in the whole sequence, [s] int64, contiguous. `row_runs` is
  // the host copy. If undefined and empty, row i has position i plus the length of the cache.
  at::Tensor rows;
  std::vector<RowRun> row_runs;
  int64_t full_seq_len = 0;  // length of the whole sequence
  at::Tensor all_rows;       // [cp, s] int64: `rows` of all context-parallel ranks, in group order
  // If ranks have different numbers of rows: the range of all_rows that belongs to each rank; all_rows is then [whole
  // s].
  std::vector<RowRun> rank_rows;
  std::vector<RowRun> all_runs;  // host copy of all_rows; empty: unavailable
  // Empty: all keys are exchanged, and all ranks have the same number of rows. `keys_of_groups` lists keys between
  // the p2p groups of a2a+p2p; the rows of a group are those of its ranks in order.
  KeyTravel keys, keys_of_groups;

  // Hybrid context parallelism: a microbatch has some documents of a sample, and all_rows holds their positions.
  // context_ranks: number of ranks that share it; 0: the group that layers are constructed with.
  // counts_tokens: whether this rank counts its tokens.
  // samples_of_step: samples of the step over all ranks.
  int64_t context_ranks = 0;
  bool counts_tokens = true;
  int64_t samples_of_step = 0;
};

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

// Size, type and device of a microbatch of whole sequences.
struct MicrobatchForm {
  int64_t samples = 0, seq_length = 0;
  bool documents = false;
  at::ScalarType float_type = at::kFloat;
  at::Device device = at::kCPU;
  int64_t max_documents = 0;  // per sample, for document_offsets; 0: no offsets
};
// Allocates all tensors that a training step reads, uninitialized.
Microbatch empty_microbatch(const MicrobatchForm& form);
// Returns Microbatch::document_offsets [b most + 1] for host tensor document_ids [b, s], in which the rows of a
// document are consecutive. The result is undefined if there are more than b * most documents.
at::Tensor document_offsets(const at::Tensor& document_ids, int64_t most);
// Makes `sample_counters` and `step` views of `both` [b + 1] int64.
void place_counters(Microbatch& batch, const at::Tensor& both);
// Sets `sample_counters` and `step` in one storage, for samples with global indices `numbers` [b] (int64, on the
// host).
void set_counters(Microbatch& batch, int64_t step, const at::Tensor& numbers);
// Returns mix(step) + number for each of `numbers`. Kernels read the counters from device memory, so a replayed graph
// generates new masks.
at::Tensor counters_of_samples(int64_t step, const at::Tensor& numbers);

// Returns the positions of the batch's rows. Asserts that tensor and ranges agree in length and stay inside the
// sequence.
Positions sequence_positions(const Microbatch& batch);

// x.index_select(dim, rows), also on the meta device, where libtorch does not implement it.
at::Tensor select_rows(const at::Tensor& x, int64_t dim, const at::Tensor& rows);

}  // namespace metroplex::nn
