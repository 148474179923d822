#include "data/chat_dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/free_memory.h"
#include "data/numpy_random.h"
#include "files/checksum.h"

namespace metroplex::data {
namespace {

constexpr size_t kOpenSamples = 64;

void check_lengths(const TokenSource& source, std::span<const int32_t> chats, const ChatOptions& options) {
  int64_t too_long = 0, longest = 0;
  for (const int32_t chat : chats) {
    const int64_t length = source.length(chat);
    MPX_CHECK(length >= 2, "data", "'", source.name(), "': chat ", chat, " has ", length,
              " tokens, none of which is predicted; metroplex preprocess --chat leaves such chats out");
    too_long += length > options.sequence_length + 1;
    longest = std::max(longest, length);
  }
  MPX_CHECK(too_long == 0, "data", "'", source.name(), "': ", too_long, " of ", chats.size(), " chats (",
            options.split, ") have more tokens than the maximum of a sample, ", options.sequence_length + 1,
            "; the longest has ", longest,
            "; increase train.seq_length, or run metroplex preprocess --chat --seq-length ", options.sequence_length,
            " --long cut (or drop)");
}

std::string chat_description(const TokenSource& source, std::span<const int32_t> chats, const ChatOptions& options) {
  return base::concat("chats in samples, version 1\nsource ", source.name(), "\nsource fingerprint ",
                      source.fingerprint(), "\nsplit ", options.split, "\nchats ", chats.size(), " sum ",
                      files::to_hex(files::checksum(chats.data(), chats.size_bytes())), "\nsequence length ",
                      options.sequence_length, "\nsamples ", options.num_samples, "\nseed ", options.seed, "\n");
}

IndexArrays packed_arrays(const TokenSource& source, std::span<const int32_t> chats, const ChatOptions& options) {
  std::vector<int64_t> lengths;
  for (const int32_t chat : chats) lengths.push_back(source.length(chat) - 1);
  std::vector<int32_t> order;
  std::vector<int64_t> begins{0};
  const auto free = base::free_memory();
  for (int64_t epoch = 0; epoch == 0 || static_cast<int64_t>(begins.size()) <= options.num_samples; ++epoch) {
    for (const std::vector<int32_t>& sample : pack_chats(chats, lengths, options, epoch)) {
      order.insert(order.end(), sample.begin(), sample.end());
      begins.push_back(static_cast<int64_t>(order.size()));
    }
    // Estimates the full order from this epoch. Writing it needs two copies in memory.
    const double share =
        std::max(1.0, static_cast<double>(options.num_samples) / static_cast<double>(begins.size() - 1));
    const double bytes = 2 * share * (static_cast<double>(order.size()) * 4 + static_cast<double>(begins.size()) * 8);
    MPX_CHECK(
        !free || bytes < static_cast<double>(free->bytes), "config", "split ", options.split, " of '", source.name(),
        "': the order of ", options.num_samples, " samples takes about ", static_cast<int64_t>(bytes / (1 << 20)),
        " MiB of memory, more than is free; reduce the number of samples (train.train_iters, train.train_samples, "
        "train.eval_iters)");
  }
  IndexArrays arrays;
  arrays.add("chats", std::move(order));
  arrays.add("begins", std::move(begins));
  return arrays;
}

}  // namespace

std::vector<std::vector<int32_t>> pack_chats(std::span<const int32_t> chats, std::span<const int64_t> lengths,
                                             const ChatOptions& options, int64_t epoch) {
  struct Open {
    int64_t room = 0;
    std::vector<int32_t> chats;
  };
  RandomState random(static_cast<uint32_t>(options.seed + static_cast<uint64_t>(epoch)));
  std::vector<int64_t> order(chats.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  random.shuffle(order);
  std::vector<std::vector<int32_t>> samples;
  std::vector<Open> open;
  for (const int64_t i : order) {
    const int64_t length = lengths[static_cast<size_t>(i)];
    auto best = open.end();
    for (auto at = open.begin(); at != open.end(); ++at) {
      if (at->room >= length && (best == open.end() || at->room < best->room)) best = at;
    }
    if (best == open.end()) {
      if (open.size() == kOpenSamples) {
        const auto fullest =
            std::min_element(open.begin(), open.end(), [](const Open& a, const Open& b) { return a.room < b.room; });
        samples.push_back(std::move(fullest->chats));
        open.erase(fullest);
      }
      open.push_back({options.sequence_length, {}});
      best = open.end() - 1;
    }
    best->room -= length;
    best->chats.push_back(chats[static_cast<size_t>(i)]);
  }
  for (Open& sample : open) samples.push_back(std::move(sample.chats));
  random.shuffle(samples);
  return samples;
}

ChatDataset::ChatDataset(std::shared_ptr<const TokenSource> source, std::span<const int32_t> chats,
                         const ChatOptions& options, const IndexCache& cache)
    : source_(std::move(source)), options_(options) {
  check_lengths(*source_, chats, options);
  entry_ = cache.get("Chats-" + options.split, chat_description(*source_, chats, options),
                     [&] { return packed_arrays(*source_, chats, options); });
  chats_ = entry_.array<int32_t>("chats");
  begins_ = entry_.array<int64_t>("begins");
}

void ChatDataset::get(int64_t index, Sample& out) const {
  MPX_ASSERT(index >= -1 && index < size() && size() > 0, "sample ", index, " of ", size());
  const auto row = static_cast<size_t>(std::max<int64_t>(index, 0));
  const auto length = static_cast<size_t>(options_.sequence_length);
  out.index = index;
  out.tokens.assign(length, 0);
  out.labels.assign(length, 0);
  out.position_ids.assign(length, 0);
  out.loss_mask.assign(length, 0.0f);
  out.document_ids.assign(length, 0);
  size_t at = 0;
  int32_t document = 0;
  std::vector<int64_t> text, learned;
  const auto number = [&](size_t end) {
    for (int64_t position = 0; at < end; ++at, ++position) {
      out.position_ids[at] = position;
      out.document_ids[at] = document;
    }
    ++document;
  };
  for (int64_t i = begins_[row]; i < begins_[row + 1]; ++i) {
    const int64_t chat = chats_[static_cast<size_t>(i)], positions = source_->length(chat) - 1;
    text.resize(static_cast<size_t>(positions) + 1);
    learned.assign(static_cast<size_t>(positions) + 1, 1);
    source_->read(chat, 0, positions + 1, text.data());
    source_->read_learned(chat, 0, positions + 1, learned.data());
    MPX_ASSERT(at + static_cast<size_t>(positions) <= length, "sample ", index, " of '", source_->name(), "'");
    for (const int64_t token : text)
      MPX_CHECK(token >= 0 && (options_.vocab_size <= 0 || token < options_.vocab_size), "data", "'", source_->name(),
                ".bin': token ", token, " of chat ", chat, " is outside the vocabulary of ", options_.vocab_size,
                "; the data was made with a different tokenizer, or was altered");
    for (size_t k = 0; k < static_cast<size_t>(positions); ++k) {
      out.tokens[at + k] = text[k];
      out.labels[at + k] = text[k + 1];
      out.loss_mask[at + k] = index >= 0 && learned[k + 1] != 0 ? 1.0f : 0.0f;
    }
    number(at + static_cast<size_t>(positions));
  }
  number(length);
}

}  // namespace metroplex::data
