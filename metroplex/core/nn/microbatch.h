// Data of a microbatch other than activations, passed to every layer. It is the same on every pipeline stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace metroplex::nn {

struct KvCache;  // kv_cache.h

// Consecutive positions [first, first + count) of a sequence.
struct IndexRange {
  int64_t first = 0, count = 0;
};

// Rows of keys exchanged between the ranks of a context-parallel group: those that a query of another rank sees. Rows
// are numbered on their owner. Lists are indexed by rank in the group; the lists of the rank itself are unused.
struct KeyExchange {
  std::vector<std::vector<IndexRange>> sent;      // local rows, for each destination rank
  std::vector<std::vector<IndexRange>> received;  // rows of each source rank
};
int64_t num_rows(const std::vector<IndexRange>& ranges);
// Returns the positions of rows [first, first + count) of a tensor whose consecutive rows have the positions
// `ranges`.
std::vector<IndexRange> narrow_ranges(const std::vector<IndexRange>& ranges, int64_t first, int64_t count);

// Positions of the s rows of a tensor in the whole sequence: row i has position rows[i] if `rows` is defined, else
// first + i.
struct Positions {
  int64_t first = 0;
  at::Tensor rows;                      // [s] int64, in any order
  int64_t whole = 0;                    // length of the whole sequence; only with `rows`
  std::vector<IndexRange> ranges = {};  // host copy of `rows` as ranges; empty: unavailable
};

// Documents of a microbatch: attention stays inside a document.
struct BatchDocuments {
  at::Tensor ids;  // [b, whole s] int64; undefined: off
  // [n + 1] int64: first row of each of n documents, rows counted over all samples, then b * whole s. The last
  // documents may be empty. If undefined, only `ids` defines the documents, and variable-length attention is not
  // used.
  at::Tensor offsets;
  // Host copy of `offsets` as row ranges, on a rank that has part of the sequence. Empty: unavailable.
  std::vector<IndexRange> ranges;
};

// Inputs of random numbers. Both tensors are in one storage on the device of the activations.
struct BatchCounters {
  at::Tensor samples;  // [b] int64, contiguous: Philox counters of dropout, see make_sample_counters(); training only
  at::Tensor step;     // [1] int64: step number; its readers assert that it is defined
};

// Context parallelism: this rank's rows of the sequence, and those of the other ranks.
struct SequenceShard {
  at::Tensor rows;  // [s] int64, contiguous: positions of this rank's s rows in the whole sequence
  // Host copy of `rows`. If both are empty, row i has position i plus the length of the cache.
  std::vector<IndexRange> row_ranges;
  int64_t length = 0;   // of the whole sequence
  at::Tensor all_rows;  // [cp, s] int64: `rows` of all context-parallel ranks, in group order
  // If ranks have different numbers of rows: the range of all_rows that belongs to each rank; all_rows is then [whole
  // s].
  std::vector<IndexRange> rank_rows;
  std::vector<IndexRange> all_ranges;  // host copy of all_rows; empty: unavailable
  // Empty: all keys are exchanged, and all ranks have the same number of rows. `group_keys` lists keys between
  // the p2p groups of a2a+p2p; the rows of a group are those of its ranks in order.
  KeyExchange keys, group_keys;

  // Hybrid context parallelism: a microbatch has some documents of a sample, and all_rows holds their positions.
  int64_t context_ranks = 0;  // number of ranks that share it; 0: the group that layers are constructed with
  bool counts_tokens = true;  // whether this rank counts its tokens
  int64_t step_samples = 0;   // samples of the step over all ranks
};

struct Microbatch {
  at::Tensor tokens;        // [b, s] int64
  at::Tensor labels;        // [b, s] int64; undefined: the head returns logits instead of a loss
  at::Tensor loss_mask;     // [b, s] at least fp32
  double mask_sum = 0;      // sum of loss_mask over the whole sequence, on every rank
  at::Tensor position_ids;  // [b, s] int64
  BatchDocuments documents;
  BatchCounters counters;
  bool training = true;      // dropout is active only in training
  KvCache* cache = nullptr;  // generation only
  SequenceShard sequence;
};

// A tensor of a microbatch: field(batch) is a reference to it.
struct TensorField {
  at::Tensor& (*find)(Microbatch&);

  at::Tensor& operator()(Microbatch& batch) const { return find(batch); }
  const at::Tensor& operator()(const Microbatch& batch) const { return find(const_cast<Microbatch&>(batch)); }
};
template <auto... members>
constexpr TensorField kField{[](Microbatch& batch) -> at::Tensor& { return (batch.*....*members); }};

struct MicrobatchTensor {
  const char* name;
  TensorField tensor;
};
inline constexpr MicrobatchTensor kMicrobatchTensors[] = {
    {"tokens", kField<&Microbatch::tokens>},
    {"labels", kField<&Microbatch::labels>},
    {"loss_mask", kField<&Microbatch::loss_mask>},
    {"position_ids", kField<&Microbatch::position_ids>},
    {"document_ids", kField<&Microbatch::documents, &BatchDocuments::ids>},
    {"document_offsets", kField<&Microbatch::documents, &BatchDocuments::offsets>},
    {"sample_counters", kField<&Microbatch::counters, &BatchCounters::samples>},
    {"step", kField<&Microbatch::counters, &BatchCounters::step>},
    {"rows", kField<&Microbatch::sequence, &SequenceShard::rows>},
    {"all_rows", kField<&Microbatch::sequence, &SequenceShard::all_rows>}};

// Size, type and device of a microbatch of whole sequences.
struct MicrobatchSpec {
  int64_t samples = 0, seq_length = 0;
  bool documents = false;
  at::ScalarType float_type = at::kFloat;
  at::Device device = at::kCPU;
  int64_t max_documents = 0;  // per sample, for BatchDocuments::offsets; 0: no offsets
};
// Allocates all tensors that a training step reads, uninitialized.
Microbatch empty_microbatch(const MicrobatchSpec& form);
// Returns BatchDocuments::offsets [b most + 1] for host tensor document_ids [b, s], in which the rows of a
// document are consecutive. The result is undefined if there are more than b * most documents.
at::Tensor document_offsets(const at::Tensor& document_ids, int64_t most);
// Makes both counters views of `both` [b + 1] int64.
void view_counters(Microbatch& batch, const at::Tensor& both);
// Sets both counters in one storage, for samples with global indices `numbers` [b] (int64, on the
// host).
void set_counters(Microbatch& batch, int64_t step, const at::Tensor& numbers);
// Returns mix(step) + number for each of `numbers`. Kernels read the counters from device memory, so a replayed graph
// generates new masks.
at::Tensor make_sample_counters(int64_t step, const at::Tensor& numbers);

// Returns the positions of the batch's rows. Asserts that tensor and ranges agree in length and stay inside the
// sequence.
Positions sequence_positions(const Microbatch& batch);

// Returns BatchDocuments::ids of the s rows of a call, which are the last ones in generation.
at::Tensor row_documents(const Microbatch& batch, int64_t s);

// x.index_select(dim, rows), also on the meta device, where libtorch does not implement it.
at::Tensor select_rows(const at::Tensor& x, int64_t dim, const at::Tensor& rows);

}  // namespace metroplex::nn
