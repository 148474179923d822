// Megatron's token store. PREFIX.bin contains the tokens of all sequences, concatenated. PREFIX.idx is little endian:
//   - 9 bytes "MMIDIDX\0\0", u64 version 1, u8 token type
//   - u64 number of sequences, u64 entries of the document list
//   - per sequence: i32 length; then per sequence: i64 byte offset in .bin
//   - i64 document list: first sequence of each document, then the number of sequences
//   - multimodal sets only, per sequence: i8 mode
// The reader checks every field against both file sizes, so later reads stay within the files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, f64 = 6, f32 = 7, u16 = 8 };

const char* token_type_name(TokenType type);  // numpy's spelling: "uint8", "float32", ...
int64_t token_type_bytes(TokenType type);
// Megatron's rule: uint16 below 65500 tokens, else int32; also int32 if the size is unknown.
TokenType token_type_for_vocabulary(std::optional<int64_t> vocab_size);

class IndexedDataset {
 public:
  // Opens PREFIX.idx and PREFIX.bin and checks the full index. Throws base::Error with file, byte offset and reason.
  IndexedDataset(FileSystem& disk, const std::string& prefix);
  // The same for bytes in memory; `prefix` is used in messages.
  IndexedDataset(Bytes index, Bytes tokens, std::string prefix);

  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_document_entries_ - 1; }
  int64_t num_tokens() const { return num_tokens_; }
  int32_t length(int64_t sequence) const;
  int64_t document_begin(int64_t entry) const;  // entry in [0, num_documents()]; the last one is num_sequences()
  bool has_modes() const { return has_modes_; }
  int8_t mode(int64_t sequence) const;  // 0 without modes
  const std::string& prefix() const { return prefix_; }

  // Reads elements [offset, offset + count), relative to the start of `sequence`. The range may extend into the
  // following sequences (like Megatron's `get`). Throws base::Error past the end of .bin. The int64 variant requires
  // an integer type.
  void read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const;
  void read(int64_t sequence, int64_t offset, int64_t count, double* out) const;

  const Bytes& index_bytes() const { return index_; }
  const Bytes& token_bytes() const { return tokens_; }

 private:
  void check_header();
  void check_sequences();
  void check_documents();
  template <class T>
  void read_as(int64_t sequence, int64_t offset, int64_t count, T* out) const;

  Bytes index_, tokens_;
  std::string prefix_;
  TokenType type_ = TokenType::i32;
  int64_t num_sequences_ = 0, num_document_entries_ = 0, num_tokens_ = 0;
  int64_t pointers_at_ = 0, documents_at_ = 0, modes_at_ = 0;  // byte offsets in .idx
  bool has_modes_ = false;
};

// Writes PREFIX.bin.part incrementally and PREFIX.idx.part in finalize, which then syncs and renames both. Without
// finalize, existing files are unchanged and the .part files are removed.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(FileSystem& disk, std::string prefix, TokenType type, bool with_modes = false);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Appends one sequence. Throws base::Error for a token that does not fit the type.
  void add_sequence(std::span<const int64_t> tokens, int8_t mode = 0);
  void add_sequence(std::span<const int32_t> tokens, int8_t mode = 0);
  void add_sequence(std::span<const double> tokens, int8_t mode = 0);
  void end_document();  // groups the sequences since the last call into a document, possibly empty
  // Appends all sequences and documents of another set of the same type.
  void append(const IndexedDataset& other);
  void finalize();

  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  template <class Source>
  void add(std::span<const Source> tokens, int8_t mode);
  void flush();
  std::string index_text() const;

  FileSystem& disk_;
  std::string prefix_;
  TokenType type_;
  bool with_modes_;
  std::unique_ptr<WritableFile> tokens_;
  std::string buffer_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_{0};
  std::vector<int8_t> modes_;
  int64_t num_tokens_ = 0;
};

}  // namespace metroplex::files
