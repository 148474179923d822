#include "text/sentencepiece_train.h"

#include <algorithm>
#include <unordered_map>

#include <sentencepiece_trainer.h>

#include "base/error.h"
#include "files/file_system.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr size_t kMaxSentenceBytes = 4000;  // longer lines are split between characters

class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  bool done() const override { return at_ >= lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  size_t at_ = 0;
};

void append_cut(std::string_view line, std::vector<std::string>& lines) {
  while (line.size() > kMaxSentenceBytes) {
    size_t size = kMaxSentenceBytes;
    while ((static_cast<unsigned char>(line[size]) & 0xC0) == 0x80) --size;
    lines.emplace_back(line.substr(0, size));
    line.remove_prefix(size);
  }
  if (!line.empty()) lines.emplace_back(line);
}

// Removes the library's source location from the message.
std::string strip_location(const std::string& message) {
  const size_t place = message.rfind("] ");
  return place == std::string::npos ? message : message.substr(place + 2);
}

std::string train_on(const SentencePieceTraining& options, std::vector<std::string> lines) {
  MPX_CHECK(!lines.empty(), "text", "there is no text for training a tokenizer: all files are empty");
  MPX_CHECK(options.model_type == "bpe" || options.model_type == "unigram", "text", "the model type '",
            options.model_type, "' is neither bpe nor unigram");
  MPX_CHECK(options.vocab_size > 260 && options.vocab_size <= 1 << 20, "text", "the vocabulary size ",
            options.vocab_size,
            " is not in [261, 1048576]: the vocabulary always contains 256 bytes and 3 control pieces");
  static constexpr const char* kRules[] = {"identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"};
  MPX_CHECK(std::find(std::begin(kRules), std::end(kRules), options.normalization) != std::end(kRules), "text",
            "the normalization '", options.normalization,
            "' is not supported; use identity, nmt_nfkc, nfkc, nmt_nfkc_cf or nfkc_cf");
  const double coverage = options.character_coverage;
  MPX_CHECK(coverage >= 0.98 && coverage <= 1, "text", "the character coverage ", coverage,
            " is not in [0.98, 1]; the default is ", SentencePieceTraining().character_coverage);
  MPX_CHECK(options.max_bytes >= 1, "text", "cannot train a tokenizer on at most ", options.max_bytes,
            " bytes of text; the limit must be at least 1");
  const std::unordered_map<std::string, std::string> arguments{
      {"model_type", options.model_type},
      {"vocab_size", std::to_string(options.vocab_size)},
      {"character_coverage", std::to_string(options.character_coverage)},
      {"split_digits", options.split_digits ? "true" : "false"},
      {"num_threads", std::to_string(std::max(1, options.num_threads))},
      {"byte_fallback", "true"},
      {"normalization_rule_name", options.normalization},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"max_sentence_length", std::to_string(kMaxSentenceBytes + 8)},
      {"input_sentence_size", "0"},
      {"unk_surface", "\xEF\xBF\xBD"},
      {"unk_id", "0"},
      {"bos_id", "1"},
      {"eos_id", "2"},
      {"pad_id", "-1"},
      {"minloglevel", "4"}};
  Lines iterator(std::move(lines));
  std::string model;
  try {
    const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, &model);
    MPX_CHECK(status.ok(), "text", "sentencepiece cannot train a vocabulary of ", options.vocab_size,
              " pieces on this text: ", strip_location(status.ToString()), " Use a smaller vocabulary or more text");
  } catch (const base::Error&) { throw; } catch (const std::exception& error) {
    base::throw_error("text", base::concat("the sentencepiece trainer failed: ", error.what()));
  }
  return model;
}

}  // namespace

std::string train_sentencepiece(const SentencePieceTraining& options,
                                const std::function<std::optional<std::string>()>& next) {
  std::vector<std::string> lines;
  int64_t bytes = 0, number = 0;
  while (auto line = next()) {
    ++number;
    const size_t valid = valid_utf8_prefix(*line);
    MPX_CHECK(valid == line->size(), "text", "line ", number, " is not UTF-8 at its byte ", valid);
    bytes += static_cast<int64_t>(line->size());
    append_cut(*line, lines);
  }
  if (bytes > options.max_bytes) {
    const size_t step =
        static_cast<size_t>((bytes + options.max_bytes - 1) / std::max<int64_t>(1, options.max_bytes));
    size_t kept = 0;
    for (size_t i = 0; i < lines.size(); i += step, ++kept) {
      if (kept != i) lines[kept] = std::move(lines[i]);
    }
    lines.resize(kept);
  }
  return train_on(options, std::move(lines));
}

std::string train_sentencepiece_on_files(const SentencePieceTraining& options,
                                         const std::vector<std::string>& paths) {
  files::PosixFileSystem disk;
  size_t file = 0, at = 0;
  files::Bytes bytes;
  const auto next = [&]() -> std::optional<std::string> {
    while (at >= bytes.size) {
      if (file == paths.size()) return std::nullopt;
      const std::string& path = paths[file++];
      bytes = disk.map(path);
      at = 0;
      const size_t valid = valid_utf8_prefix(bytes.text());
      MPX_CHECK(valid == bytes.size, "text", path, " is not UTF-8 at byte ", valid, "; convert it first");
    }
    const std::string_view text = bytes.text();
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text.substr(at, end - at));
    at = end + 1;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return line;
  };
  return train_sentencepiece(options, next);
}

}  // namespace metroplex::text
