// Samples of complete chats for fine-tuning. A sample contains as many chats as fit, concatenated. Each chat is a
// separate document: positions restart, attention does not cross chats, and no token predicts the first token of the
// next chat. The loss counts positions whose next token is learned. The rest of a sample is token 0 without loss.
//
// In every epoch the chats are shuffled and then packed in that order. Each goes to the fullest of at most 64 open
// samples in which it fits. Then the samples are shuffled. An epoch depends only on its number, the seed and the
// chats. A run that requests more samples therefore starts with the same ones.
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
  int64_t num_samples = -1;  // minimum; -1: one epoch
  uint32_t seed = 1234;
  int64_t vocab_size = 0;  // exclusive bound of tokens; 0: not checked
  std::string split = "train";
};

// Returns the chats of every sample of one epoch. lengths[i] is the length of chats[i] in positions, in [1,
// sequence_length].
std::vector<std::vector<int32_t>> pack_chats(std::span<const int32_t> chats, std::span<const int64_t> lengths,
                                             const ChatOptions& options, int64_t epoch);

class ChatDataset final : public Dataset {
 public:
  // `chats` is the split's part of the source. Throws base::Error if a chat has more tokens than fit in a sample
  // (positions + 1).
  ChatDataset(std::shared_ptr<const TokenSource> source, std::span<const int32_t> chats, const ChatOptions& options,
              const IndexCache& cache);
  int64_t size() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  void get(int64_t index, Sample& out) const override;

 private:
  std::shared_ptr<const TokenSource> source_;
  ChatOptions options_;
  IndexCache::Entry entry_;          // owns the memory of the spans
  std::span<const int32_t> chats_;   // of all samples, concatenated
  std::span<const int64_t> begins_;  // [samples + 1]: start of each sample's chats
};

}  // namespace metroplex::data
