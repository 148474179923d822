#include "files/indexed_dataset.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"

namespace metroplex::files {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian and are read in place");

namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr int64_t kVersionAt = 9, kTypeAt = 17, kSequencesAt = 18, kDocumentsAt = 26, kHeaderBytes = 34;
constexpr size_t kFlushBytes = size_t{4} << 20;

struct TypeRow {
  TokenType type;
  const char* name;
  int64_t bytes;
};
constexpr std::array<TypeRow, 8> kTypes{{{TokenType::u8, "uint8", 1},
                                         {TokenType::i8, "int8", 1},
                                         {TokenType::i16, "int16", 2},
                                         {TokenType::i32, "int32", 4},
                                         {TokenType::i64, "int64", 8},
                                         {TokenType::f64, "float64", 8},
                                         {TokenType::f32, "float32", 4},
                                         {TokenType::u16, "uint16", 2}}};

const TypeRow& find_row(TokenType type) { return kTypes.at(static_cast<size_t>(type) - 1); }

// Fields of .idx are unaligned.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void append_raw(std::string& out, const std::vector<T>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Calls visit(T{}) with the C++ type of a token type.
template <class Visit>
void with_type(TokenType type, Visit visit) {
  switch (type) {
    case TokenType::u8:
      return visit(uint8_t{});
    case TokenType::i8:
      return visit(int8_t{});
    case TokenType::i16:
      return visit(int16_t{});
    case TokenType::i32:
      return visit(int32_t{});
    case TokenType::i64:
      return visit(int64_t{});
    case TokenType::f64:
      return visit(double{});
    case TokenType::f32:
      return visit(float{});
    case TokenType::u16:
      return visit(uint16_t{});
  }
}

}  // namespace

const char* token_type_name(TokenType type) { return find_row(type).name; }
int64_t token_type_bytes(TokenType type) { return find_row(type).bytes; }

TokenType token_type_for_vocabulary(std::optional<int64_t> vocab_size) {
  return vocab_size && *vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

IndexedDataset::IndexedDataset(FileSystem& disk, const std::string& prefix)
    : IndexedDataset{disk.map(prefix + ".idx"), disk.map(prefix + ".bin"), prefix} {}

IndexedDataset::IndexedDataset(Bytes index, Bytes tokens, std::string prefix)
    : index_(std::move(index)), tokens_(std::move(tokens)), prefix_(std::move(prefix)) {
  check_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::check_header() {
  const int64_t size = static_cast<int64_t>(index_.size);
  MPX_CHECK(size >= kHeaderBytes, "files", "'", prefix_, ".idx' has ", size, " bytes, less than its header of ",
            kHeaderBytes, "; it was truncated or is not an index: preprocess the text again");
  MPX_CHECK(index_.text().substr(0, kMagic.size()) == kMagic, "files", "'", prefix_,
            ".idx' offset 0: does not start with MMIDIDX; it is not an index of tokens");
  const uint64_t version = load<uint64_t>(index_.data + kVersionAt);
  MPX_CHECK(version == 1, "files", "'", prefix_, ".idx' offset ", kVersionAt, ": version ", version,
            "; the only supported version is 1");
  const int code = load<uint8_t>(index_.data + kTypeAt);
  MPX_CHECK(code >= 1 && code <= 8, "files", "'", prefix_, ".idx' offset ", kTypeAt, ": token type code ", code,
            " is not one of 1 to 8");
  type_ = static_cast<TokenType>(code);

  const uint64_t sequences = load<uint64_t>(index_.data + kSequencesAt);
  const uint64_t entries = load<uint64_t>(index_.data + kDocumentsAt);
  const uint64_t rest = static_cast<uint64_t>(size - kHeaderBytes);
  MPX_CHECK(sequences <= rest / 12, "files", "'", prefix_, ".idx' offset ", kSequencesAt, ": ", sequences,
            " sequences need more bytes than the ", size, " of the file");
  MPX_CHECK(entries >= 1 && entries <= (rest - 12 * sequences) / 8, "files", "'", prefix_, ".idx' offset ",
            kDocumentsAt, ": ", entries, " entries in the list of documents; must be from 1 to ",
            (rest - 12 * sequences) / 8);
  const uint64_t spare = rest - 12 * sequences - 8 * entries;
  MPX_CHECK(spare == 0 || spare == sequences, "files", "'", prefix_, ".idx' has ", size, " bytes, but ", sequences,
            " sequences and ", entries, " document entries take ", size - static_cast<int64_t>(spare), " (or ",
            sequences, " more with modes); it was truncated or altered");
  num_sequences_ = static_cast<int64_t>(sequences);
  num_document_entries_ = static_cast<int64_t>(entries);
  has_modes_ = spare != 0;
  pointers_at_ = kHeaderBytes + 4 * num_sequences_;
  documents_at_ = pointers_at_ + 8 * num_sequences_;
  modes_at_ = documents_at_ + 8 * num_document_entries_;
}

void IndexedDataset::check_sequences() {
  const int64_t width = token_type_bytes(type_), total = static_cast<int64_t>(tokens_.size);
  int64_t expected = 0;  // every writer stores the sequences contiguously
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const int32_t count = length(i);
    MPX_CHECK(count >= 0, "files", "'", prefix_, ".idx' offset ", kHeaderBytes + 4 * i, ": sequence ", i,
              " has length ", count);
    const int64_t pointer = load<int64_t>(index_.data + pointers_at_ + 8 * i);
    MPX_CHECK(pointer == expected, "files", "'", prefix_, ".idx' offset ", pointers_at_ + 8 * i, ": sequence ", i,
              " starts at byte ", pointer, " of .bin, but the previous sequence ends at ", expected);
    MPX_CHECK(width * count <= total - pointer, "files", "'", prefix_, ".idx' offset ", kHeaderBytes + 4 * i,
              ": sequence ", i, " of ", count, " ", token_type_name(type_), " at byte ", pointer, " ends past the ",
              total, " bytes of '", prefix_, ".bin'; one of the two files was truncated or altered");
    expected += width * count;
    num_tokens_ += count;
  }
  MPX_CHECK(expected == total, "files", "'", prefix_, ".bin' has ", total, " bytes, but its index accounts for ",
            expected, "; the two files do not match");
}

void IndexedDataset::check_documents() {
  int64_t previous = 0;
  for (int64_t i = 0; i < num_document_entries_; ++i) {
    const int64_t begin = document_begin(i);
    const bool last = i + 1 == num_document_entries_;
    const bool fits = i == 0 && begin != 0 ? false : begin >= previous && begin <= num_sequences_;
    MPX_CHECK(fits && (!last || begin == num_sequences_), "files", "'", prefix_, ".idx' offset ",
              documents_at_ + 8 * i, ": document entry ", i, " is ", begin,
              "; entries must start with 0, never decrease, and end with the number of sequences ", num_sequences_);
    previous = begin;
  }
}

int32_t IndexedDataset::length(int64_t sequence) const {
  MPX_ASSERT(sequence >= 0 && sequence < num_sequences_, "sequence ", sequence);
  return load<int32_t>(index_.data + kHeaderBytes + 4 * sequence);
}

int64_t IndexedDataset::document_begin(int64_t entry) const {
  MPX_ASSERT(entry >= 0 && entry < num_document_entries_, "document entry ", entry);
  return load<int64_t>(index_.data + documents_at_ + 8 * entry);
}

int8_t IndexedDataset::mode(int64_t sequence) const {
  MPX_ASSERT(sequence >= 0 && sequence < num_sequences_, "sequence ", sequence);
  return has_modes_ ? load<int8_t>(index_.data + modes_at_ + sequence) : int8_t{0};
}

template <class T>
void IndexedDataset::read_as(int64_t sequence, int64_t offset, int64_t count, T* out) const {
  MPX_ASSERT(sequence >= 0 && sequence < num_sequences_ && offset >= 0 && count >= 0, "sequence ", sequence,
             " offset ", offset, " count ", count);
  const int64_t width = token_type_bytes(type_), total = static_cast<int64_t>(tokens_.size);
  const int64_t pointer = load<int64_t>(index_.data + pointers_at_ + 8 * sequence);
  const int64_t room = (total - pointer) / width;
  MPX_CHECK(offset <= room && count <= room - offset, "files", "'", prefix_, ".bin': sequence ", sequence, " offset ",
            offset, ": ", count, " tokens end past the end of the file");
  if (count == 0) return;
  const std::byte* at = tokens_.data + pointer + width * offset;
  with_type(type_, [&](auto sample) {
    using Stored = decltype(sample);
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(load<Stored>(at + width * i));
  });
}

void IndexedDataset::read(int64_t sequence, int64_t offset, int64_t count, int64_t* out) const {
  MPX_CHECK(type_ != TokenType::f32 && type_ != TokenType::f64, "files", "'", prefix_, ".idx' offset ", kTypeAt,
            ": contains ", token_type_name(type_), " values; token ids must be integers");
  read_as(sequence, offset, count, out);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, int64_t count, double* out) const {
  read_as(sequence, offset, count, out);
}

IndexedDatasetWriter::IndexedDatasetWriter(FileSystem& disk, std::string prefix, TokenType type, bool with_modes)
    : disk_(disk), prefix_(std::move(prefix)), type_(type), with_modes_(with_modes) {
  tokens_ = disk_.create(prefix_ + ".bin.part");
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (!tokens_) return;
  try {
    tokens_.reset();
    disk_.remove(prefix_ + ".bin.part");
    if (disk_.exists(prefix_ + ".idx.part")) disk_.remove(prefix_ + ".idx.part");
  } catch (...) {  // leftovers have the suffix .part and are overwritten next time
  }
}

template <class Source>
void IndexedDatasetWriter::add(std::span<const Source> tokens, int8_t mode) {
  MPX_CHECK(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "files", "'", prefix_,
            "': sequence ", num_sequences(), " has ", tokens.size(),
            " tokens, but the format allows 2147483647; split the document");
  const size_t width = static_cast<size_t>(token_type_bytes(type_)), start = buffer_.size();
  buffer_.resize(start + width * tokens.size());
  with_type(type_, [&](auto sample) {
    using Stored = decltype(sample);
    char* at = buffer_.data() + start;
    for (const Source token : tokens) {
      bool fits = true;
      if constexpr (std::is_integral_v<Stored> && std::is_floating_point_v<Source>) {
        fits = token >= static_cast<double>(std::numeric_limits<Stored>::min()) && token == std::floor(token) &&
               token < std::ldexp(1.0, std::numeric_limits<Stored>::digits);
      } else if constexpr (std::is_integral_v<Stored>) {
        fits = token >= static_cast<int64_t>(std::numeric_limits<Stored>::min()) &&
               token <= static_cast<int64_t>(std::numeric_limits<Stored>::max());
      }
      if (!fits) {
        buffer_.resize(start);
        base::throw_error("files", base::concat("'", prefix_, "': token ", token, " of sequence ", num_sequences(),
                                                " does not fit in ", token_type_name(type_)));
      }
      const Stored stored = static_cast<Stored>(token);
      std::memcpy(at, &stored, sizeof stored);
      at += sizeof stored;
    }
  });
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  if (with_modes_) modes_.push_back(mode);
  num_tokens_ += static_cast<int64_t>(tokens.size());
  if (buffer_.size() >= kFlushBytes) flush();
}

void IndexedDatasetWriter::add_sequence(std::span<const int64_t> tokens, int8_t mode) { add(tokens, mode); }
void IndexedDatasetWriter::add_sequence(std::span<const int32_t> tokens, int8_t mode) { add(tokens, mode); }
void IndexedDatasetWriter::add_sequence(std::span<const double> tokens, int8_t mode) { add(tokens, mode); }

void IndexedDatasetWriter::end_document() { documents_.push_back(num_sequences()); }

void IndexedDatasetWriter::append(const IndexedDataset& other) {
  MPX_CHECK(other.type() == type_, "files", "'", other.prefix(), "' contains ", token_type_name(other.type()),
            " tokens and '", prefix_, "' contains ", token_type_name(type_),
            "; only datasets of the same type can be merged");
  MPX_CHECK(other.has_modes() == with_modes_ || other.num_sequences() == 0, "files", "'", other.prefix(), "' ",
            other.has_modes() ? "has" : "has no", " modes, but the other datasets ",
            with_modes_ ? "have them" : "have none");
  flush();
  const int64_t before = num_sequences();
  for (int64_t i = 0; i < other.num_sequences(); ++i) {
    lengths_.push_back(other.length(i));
    if (with_modes_) modes_.push_back(other.mode(i));
  }
  for (int64_t i = 1; i <= other.num_documents(); ++i) documents_.push_back(before + other.document_begin(i));
  num_tokens_ += other.num_tokens();
  tokens_->write(other.token_bytes().data, other.token_bytes().size);
}

void IndexedDatasetWriter::flush() {
  tokens_->write(buffer_.data(), buffer_.size());
  buffer_.clear();
}

std::string IndexedDatasetWriter::index_text() const {
  std::string out(kMagic);
  append_raw(out, uint64_t{1});
  append_raw(out, static_cast<uint8_t>(type_));
  append_raw(out, static_cast<uint64_t>(lengths_.size()));
  append_raw(out, static_cast<uint64_t>(documents_.size()));
  append_raw(out, lengths_);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    append_raw(out, pointer);
    pointer += token_type_bytes(type_) * length;
  }
  append_raw(out, documents_);
  append_raw(out, modes_);
  return out;
}

void IndexedDatasetWriter::finalize() {
  MPX_ASSERT(tokens_ != nullptr, "finalize must be called only once");
  MPX_CHECK(documents_.back() == num_sequences(), "files", "'", prefix_, "': ", num_sequences() - documents_.back(),
            " sequences were written after the end of the last document");
  flush();
  tokens_->sync();
  tokens_->close();
  const std::string bin = prefix_ + ".bin", idx = prefix_ + ".idx", directory = parent_directory(prefix_);
  const std::string text = index_text();
  const auto index = disk_.create(idx + ".part");
  index->write(text.data(), text.size());
  index->sync();
  index->close();
  // An old index never coexists with new tokens: between the two renames there is no dataset of this name.
  if (disk_.exists(idx)) {
    disk_.remove(idx);
    disk_.sync_directory(directory);
  }
  disk_.rename(bin + ".part", bin);
  disk_.rename(idx + ".part", idx);
  disk_.sync_directory(directory);
  tokens_.reset();
}

}  // namespace metroplex::files
