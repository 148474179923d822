#include "data/token_source.h"

#include "base/error.h"
#include "data/numpy_random.h"
#include "files/checksum.h"

namespace metroplex::data {

namespace {
constexpr int64_t kMockDocuments = 100000;
constexpr int32_t kMockLengthBound = 4096;
}  // namespace

IndexedSource::IndexedSource(files::FileSystem& disk, const std::string& prefix) : dataset_(disk, prefix) {
  MPX_CHECK(dataset_.type() != files::TokenType::f32 && dataset_.type() != files::TokenType::f64, "data", "'", prefix,
            ".idx' contains ", files::token_type_name(dataset_.type()), " values; token ids must be integers");
}

std::string IndexedSource::fingerprint() const {
  const files::Bytes& index = dataset_.index_bytes();
  return files::to_hex(files::checksum(index.data, index.size));
}

bool holds_chats(files::FileSystem& disk, const std::string& prefix) {
  return disk.exists(prefix + kLossMaskSuffix + ".idx");
}

void refuse_loss_mask(const std::string& prefix) {
  const std::string_view suffix = kLossMaskSuffix;
  if (!prefix.ends_with(suffix)) return;
  base::throw_error(
      "data",
      base::concat("'", prefix, "' is the loss mask of chats, which training finds automatically; use the dataset '",
                   prefix.substr(0, prefix.size() - suffix.size()), "'"));
}

ChatSource::ChatSource(files::FileSystem& disk, const std::string& prefix)
    : IndexedSource(disk, prefix), marks_(disk, prefix + kLossMaskSuffix) {
  const char* again = "; create both again with metroplex preprocess --chat --overwrite";
  MPX_CHECK(marks_.type() == files::TokenType::u8, "data", "'", marks_.prefix(), ".idx' contains ",
            files::token_type_name(marks_.type()), " values, not uint8", again);
  MPX_CHECK(marks_.num_sequences() == num_sequences(), "data", "'", prefix, "' has ", num_sequences(),
            " chats, but '", marks_.prefix(), "' has marks of ", marks_.num_sequences(), again);
  for (int64_t i = 0; i < num_sequences(); ++i)
    MPX_CHECK(marks_.length(i) == length(i), "data", "chat ", i, " of '", prefix, "' has ", length(i),
              " tokens, but '", marks_.prefix(), "' has marks of ", marks_.length(i), again);
}

bool ChatSource::read_learned(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const {
  marks_.read(sequence, offset, count, out);
  for (int64_t i = 0; i < count; ++i)
    MPX_CHECK(out[i] == 0 || out[i] == 1, "data", "'", marks_.prefix(), ".bin': token ", offset + i, " of chat ",
              sequence, " has the mark ", out[i],
              ", which is neither 0 nor 1; create both again with metroplex preprocess --chat --overwrite");
  return true;
}

std::string ChatSource::fingerprint() const {
  const files::Bytes &index = marks_.index_bytes(), &marks = marks_.token_bytes();
  return IndexedSource::fingerprint() + " chats " + files::to_hex(files::checksum(index.data, index.size)) + " " +
         files::to_hex(files::checksum(marks.data, marks.size));
}

MockSource::MockSource(int64_t vocab_size, int64_t eod) : vocab_size_(vocab_size), eod_(eod) {
  MPX_CHECK(vocab_size >= 1 && eod >= 0 && eod < vocab_size, "data",
            "mock data needs an end-of-document token within the vocabulary; got eod ", eod, " and vocabulary ",
            vocab_size, "; set the tokenizer or model.vocab_size");
  lengths_ = DefaultRng(0).integers(1, kMockLengthBound, kMockDocuments);
}

void MockSource::read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const {
  const int64_t last = length(sequence) - 1;
  MPX_ASSERT(offset >= 0 && count >= 0 && offset + count <= last + 1, "mock document ", sequence, " offset ", offset,
             " count ", count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = offset + i;
    out[i] = position == last ? eod_ : (position + 1) % vocab_size_;
  }
}

std::string MockSource::fingerprint() const { return base::concat("mock ", vocab_size_, " ", eod_); }

}  // namespace metroplex::data
