// Megatron's GPTDataset: samples of exactly sequence_length tokens from documents, with labels shifted by one, loss
// mask and positions. gpt_index.h defines the order. A cache of index files stores it; ranks may build the cache
// concurrently.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/gpt_index.h"
#include "data/index_cache.h"
#include "data/sample.h"
#include "data/token_source.h"

namespace metroplex::data {

struct GptOptions {
  GptIndexOptions index;
  std::string split = "train";          // train | valid | test
  int64_t eod = -1;                     // end-of-document token; required by the next three options
  bool reset_position_ids = false;      // positions restart at 0 after every eod
  bool reset_attention_mask = false;    // fills Sample::document_ids, counted by eod
  bool eod_mask_loss = false;           // no loss at eod tokens
  bool inter_document_masking = false;  // both resets, at document borders instead of eod
  int64_t pad = -1;                     // pads a last sample that is too short; masked and replaced by 0
  int64_t vocab_size = 0;               // exclusive bound of tokens; 0: not checked
};

// Fills loss mask, positions and documents of one sequence from `sample.tokens`.
void fill_masks(const GptOptions& options, Sample& sample);

// Returns why the sample order needs more memory than is free; "" if it does not.
std::string order_problem(const TokenSource& source, std::span<const int32_t> documents, const GptOptions& options);

class GptDataset final : public Dataset {
 public:
  // `documents` [begin, end) is the split's part of the source. Throws base::Error if options need an eod that is not
  // set, or if the split has no token.
  GptDataset(std::shared_ptr<const TokenSource> source, std::span<const int32_t> documents, const GptOptions& options,
             const IndexCache& cache);

  int64_t size() const override { return static_cast<int64_t>(shuffle_index_.size()); }
  void get(int64_t index, Sample& out) const override;

  std::span<const int32_t> document_index() const { return document_index_; }
  std::span<const int64_t> sample_index() const { return sample_index_; }
  std::span<const int64_t> shuffle_index() const { return shuffle_index_; }

 private:
  // Reads the sequence_length (+ 1) tokens of a sample, padded. part_ends receives the end of each document's part.
  void read_tokens(int64_t sample, std::vector<int64_t>& text, std::vector<int64_t>& part_ends) const;
  void check_tokens(std::span<const int64_t> text, int64_t index) const;

  std::shared_ptr<const TokenSource> source_;
  GptOptions options_;
  IndexCache::Entry entry_;  // owns the memory of the spans
  std::span<const int32_t> document_index_;
  std::span<const int64_t> sample_index_, shuffle_index_;
};

}  // namespace metroplex::data
