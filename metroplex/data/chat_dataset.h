// Samples of whole chats for fine-tuning. A sample holds as many chats as fit, one behind the other, each a document
// of its own: positions begin again, nothing attends across, no token predicts the first of the next chat. The loss
// counts where the next token is one that is learned. What is left of a sample is filled with token 0, without loss.
//
// Order: in every epoch the chats are shuffled, packed in that order, each into the fullest of at most 64 open
// samples that has room, and the samples shuffled. An epoch depends on its number, the seed and the chats only, so a
// run that asks for more samples sees the same ones first.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/index_cache.h"
#include "data/sample.h"
#include "data/token_source.h"

namespace metroplex::data {

struct ChatOptions {
  int64_t sequence_length = 0;
  int64_t num_samples = -1;  // at least this many; -1: one epoch
  uint32_t seed = 1234;
  int64_t vocab_size = 0;  // every token must be below; 0: not checked
  std::string split = "train";
};

// One epoch: the chats of every sample. `lengths` in positions, each in [1, sequence_length]; of chats[i] lengths[i].
std::vector<std::vector<int32_t>> pack_chats(std::span<const int32_t> chats, std::span<const int64_t> lengths,
                                             const ChatOptions& options, int64_t epoch);

class ChatDataset final : public Dataset {
 public:
  // `chats` are the split's part of the source. Throws base::Error where some have more tokens than a sample takes,
  // one more than it has positions.
  ChatDataset(std::shared_ptr<const TokenSource> source, std::span<const int32_t> chats, const ChatOptions& options,
              const IndexCache& cache);
  int64_t size() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  void get(int64_t index, Sample& out) const override;

 private:
  std::shared_ptr<const TokenSource> source_;
  ChatOptions options_;
  IndexCache::Entry entry_;          // keeps the spans alive
  std::span<const int32_t> chats_;   // of all samples, one behind the other
  std::span<const int64_t> begins_;  // [samples + 1]: where each sample's chats begin
};

}  // namespace metroplex::data
