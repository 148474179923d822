// Megatron's GPTDataset: samples of exactly sequence_length tokens from documents, with labels shifted by one, loss
// mask and positions. The order comes from gpt_index.h, through a cache of index files that ranks may build
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
  int64_t eod = -1;                     // end-of-document token; needed by the next three
  bool reset_position_ids = false;      // positions restart at 0 after every eod
  bool reset_attention_mask = false;    // fills Sample::document_ids, counted by eod
  bool eod_mask_loss = false;           // no loss where the token is eod
  bool inter_document_masking = false;  // both resets, at document borders instead of at eod
  int64_t pad = -1;                     // fills up a last sample that is too short; masked, and replaced by 0
  int64_t vocab_size = 0;               // every token must be below; 0: not checked
};

// Fills in loss mask, positions and documents of one sequence. Reads `sample.tokens`, writes the rest.
void fill_masks(const GptOptions& options, Sample& sample);

// Returns why the order of the samples takes more memory than is free; "" if it does not.
std::string order_problem(const TokenSource& source, std::span<const int32_t> documents, const GptOptions& options);

class GptDataset final : public Dataset {
 public:
  // `documents` [begin, end) are the split's part of the source. Throws base::Error when options need an eod and
  // there is none, or the split holds no token.
  GptDataset(std::shared_ptr<const TokenSource> source, std::span<const int32_t> documents, const GptOptions& options,
             const IndexCache& cache);

  int64_t size() const override { return static_cast<int64_t>(shuffle_index_.size()); }
  void get(int64_t index, Sample& out) const override;

  std::span<const int32_t> document_index() const { return document_index_; }
  std::span<const int64_t> sample_index() const { return sample_index_; }
  std::span<const int64_t> shuffle_index() const { return shuffle_index_; }

 private:
  // Reads the sequence_length (+ 1) tokens of a sample, padded; part_ends gets the end of each document's part.
  void read_tokens(int64_t sample, std::vector<int64_t>& text, std::vector<int64_t>& part_ends) const;
  void check_tokens(std::span<const int64_t> text, int64_t index) const;

  std::shared_ptr<const TokenSource> source_;
  GptOptions options_;
  IndexCache::Entry entry_;  // keeps the spans alive
  std::span<const int32_t> document_index_;
  std::span<const int64_t> sample_index_, shuffle_index_;
};

}  // namespace metroplex::data
