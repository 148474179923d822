// A key with an enumerated value. Each such key has an enum and one table of {enumerator, word}. YAML, options,
// --help, errors and the saved config use the words of this table. A Choice holds the enumerator, compares like it
// and prints as its word.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace metroplex::config {

template <class E>
struct Word {
  E value;
  const char* text;
};

// The table of an enum; each enum specializes it.
template <class E>
inline constexpr int kWords = 0;

template <class E>
concept HasWords = std::is_enum_v<E> && std::is_array_v<std::remove_const_t<decltype(kWords<E>)>>;

template <HasWords E>
constexpr const char* text_of(E value) {
  for (const Word<E>& word : kWords<E>) {
    if (word.value == value) return word.text;
  }
  return "";
}

template <HasWords E>
std::optional<E> value_of(std::string_view text) {
  for (const Word<E>& word : kWords<E>) {
    if (text == word.text) return word.value;
  }
  return std::nullopt;
}

template <HasWords E>
std::vector<std::string> words_of() {
  std::vector<std::string> words;
  for (const Word<E>& word : kWords<E>) words.emplace_back(word.text);
  return words;
}

// Throws base::Error("config") with the valid words and the nearest one.
[[noreturn]] void refuse_word(const std::string& text, const std::vector<std::string>& words);

template <HasWords E>
class Choice {
 public:
  constexpr Choice(E value) : value_(value) {}
  // Throws base::Error("config") unless `text` is a word of the table.
  Choice(const std::string& text) : value_(read(text)) {}
  Choice(const char* text) : value_(read(text)) {}

  constexpr operator E() const { return value_; }
  const char* text() const { return text_of(value_); }

  friend std::ostream& operator<<(std::ostream& out, const Choice& choice) { return out << choice.text(); }
  friend std::string operator+(const std::string& left, const Choice& choice) { return left + choice.text(); }
  // Compare with an enumerator, not with a word.
  bool operator==(const char*) const = delete;
  bool operator==(const std::string&) const = delete;

 private:
  static E read(const std::string& text) {
    const std::optional<E> value = value_of<E>(text);
    if (!value) refuse_word(text, words_of<E>());
    return *value;
  }

  E value_;
};

}  // namespace metroplex::config
