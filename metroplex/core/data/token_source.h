// Documents of a GPT dataset: an indexed dataset on disk, or generated mock documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files/indexed_dataset.h"

namespace metroplex::data {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t num_sequences() const = 0;
  virtual int32_t length(int64_t sequence) const = 0;
  // Copies tokens [offset, offset + count) of a sequence, which must have that many. Thread-safe.
  virtual void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const = 0;
  // For chats: copies the marks, 1 for a learned token. Returns false and writes nothing if the source has no marks;
  // then all tokens are learned.
  virtual bool read_learned(int64_t /*sequence*/, int64_t /*offset*/, int64_t /*count*/, int64_t* /*out*/) const {
    return false;
  }
  virtual bool holds_chats() const { return false; }
  // Returns the path prefix, or "mock", for messages.
  virtual std::string name() const = 0;
  // Changes whenever lengths may have changed; part of the key of cached index files.
  virtual std::string fingerprint() const = 0;
};

// Each sequence of the dataset is a document.
class IndexedSource : public TokenSource {
 public:
  // Throws base::Error if the files are damaged or contain non-integers.
  IndexedSource(files::FileSystem& disk, const std::string& prefix);
  int64_t num_sequences() const override { return dataset_.num_sequences(); }
  int32_t length(int64_t sequence) const override { return dataset_.length(sequence); }
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const override {
    dataset_.read(sequence, offset, count, out);
  }
  std::string name() const override { return dataset_.prefix(); }
  std::string fingerprint() const override;

 private:
  files::IndexedDataset dataset_;
};

// Chats have PREFIX_loss_mask next to PREFIX, with the same sequences and lengths. Its numbers are 1 for learned
// tokens and 0 for others (metroplex preprocess --chat).
inline constexpr const char* kLossMaskSuffix = "_loss_mask";
bool holds_chats(files::FileSystem& disk, const std::string& prefix);
// Throws base::Error if `prefix` is a loss mask, which is not text.
void refuse_loss_mask(const std::string& prefix);

class ChatSource final : public IndexedSource {
 public:
  // Throws base::Error if tokens and marks do not match.
  ChatSource(files::FileSystem& disk, const std::string& prefix);
  bool read_learned(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const override;
  bool holds_chats() const override { return true; }
  std::string fingerprint() const override;

 private:
  files::IndexedDataset marks_;
};

// Megatron's mock corpus: 100,000 documents of 1 to 4095 tokens. A document is 1, 2, 3, ... modulo the vocabulary,
// then eod.
class MockSource final : public TokenSource {
 public:
  MockSource(int64_t vocab_size, int64_t eod);
  int64_t num_sequences() const override { return static_cast<int64_t>(lengths_.size()); }
  int32_t length(int64_t sequence) const override { return lengths_[static_cast<size_t>(sequence)]; }
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const override;
  std::string name() const override { return "mock"; }
  std::string fingerprint() const override;

 private:
  int64_t vocab_size_, eod_;
  std::vector<int32_t> lengths_;
};

}  // namespace metroplex::data
