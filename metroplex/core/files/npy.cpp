#include "files/npy.h"

#include <cctype>

#include "base/error.h"

namespace metroplex::files {

namespace {

constexpr std::string_view kNpyMagic{"\x93NUMPY\x01\x00", 8};
constexpr size_t kPreamble = 10, kAlignment = 64;
constexpr int64_t kMostElements = int64_t{1} << 48;

// Parses the Python dictionary of a header; accepts only the form that numpy writes.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  void expect(std::string_view word) {
    skip_spaces();
    MPX_CHECK(text_.substr(at_, word.size()) == word, "files", "'", path_, "' offset ", kPreamble + at_,
              ": the header should have ", word, " here");
    at_ += word.size();
  }
  bool next_is(char c) {
    skip_spaces();
    return at_ < text_.size() && text_[at_] == c;
  }
  std::string quoted() {
    expect("'");
    const size_t end = text_.find('\'', at_);
    MPX_CHECK(end != std::string_view::npos, "files", "'", path_, "' offset ", kPreamble + at_,
              ": the closing quote is missing");
    std::string word(text_.substr(at_, end - at_));
    at_ = end + 1;
    return word;
  }
  int64_t number() {
    skip_spaces();
    int64_t value = 0;
    const size_t start = at_;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) && value < kMostElements; ++at_)
      value = 10 * value + (text_[at_] - '0');
    MPX_CHECK(at_ > start && value < kMostElements, "files", "'", path_, "' offset ", kPreamble + start,
              ": the header should have a size here");
    return value;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
};

}  // namespace

int64_t NpyArray::size() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

void NpyArray::check_type(const std::string& wanted) const {
  MPX_CHECK(type == wanted, "files", "a .npy array contains ", type, ", not ", wanted);
}

NpyArray parse_npy(Bytes file, const std::string& path) {
  const std::string_view text = file.text();
  MPX_CHECK(text.size() >= kPreamble && text.substr(0, kNpyMagic.size()) == kNpyMagic, "files", "'", path,
            "' offset 0: not a .npy file of version 1.0");
  const size_t length = static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  MPX_CHECK(length <= text.size() - kPreamble && (kPreamble + length) % kAlignment == 0, "files", "'", path,
            "' offset 8: the header has ", length, " bytes, but the file has ", text.size());

  NpyArray array;
  array.header_bytes = static_cast<int64_t>(kPreamble + length);
  HeaderReader header(text.substr(kPreamble, length), path);
  header.expect("{'descr':");
  array.type = header.quoted();
  header.expect(", 'fortran_order': False, 'shape': (");
  array.shape.push_back(header.number());
  header.expect(",");
  if (!header.next_is(')')) array.shape.push_back(header.number());
  header.expect("), }");

  const std::string_view types = "i1 i2 i4 i8 u1 u2 u4 u8";
  MPX_CHECK(array.type.size() == 3 && array.type[1] != ' ' && types.find(array.type.substr(1)) != types.npos &&
                array.type[0] == (array.type[2] == '1' ? '|' : '<'),
            "files", "'", path, "': type '", array.type, "' is not a little-endian integer");
  const int64_t width = array.type[2] - '0', bytes = static_cast<int64_t>(text.size()) - array.header_bytes;
  const int64_t rows = array.shape[0], columns = array.shape.size() == 2 ? array.shape[1] : 1;
  MPX_CHECK(columns == 0 || rows <= kMostElements / columns, "files", "'", path, "': the shape ", rows, " x ",
            columns, " has too many elements");
  MPX_CHECK(bytes == rows * columns * width, "files", "'", path, "' has ", bytes,
            " bytes of data, but its header states ", rows * columns * width, "; it was truncated or altered");
  array.file = std::move(file);
  return array;
}

std::string npy_header(const std::string& type, const std::vector<int64_t>& shape) {
  MPX_ASSERT(shape.size() == 1 || shape.size() == 2, shape.size(), " dimensions");
  const std::string first = std::to_string(shape[0]);
  const std::string sizes = shape.size() == 1 ? first + "," : first + ", " + std::to_string(shape[1]);
  std::string text = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  text.append(21 - first.size(), ' ');  // numpy reserves space for the first extent to grow to 21 digits
  const size_t unpadded = kPreamble + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string out(kNpyMagic);
  out += static_cast<char>(text.size() % 256);
  out += static_cast<char>(text.size() / 256);
  return out + text;
}

}  // namespace metroplex::files
