#include "text/added_tokens.h"

#include <algorithm>

#include "text/utf8.h"

namespace metroplex::text {
namespace {

char32_t code_point_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return next_code_point(text, begin);
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(code_point_before(text, begin))) return false;
  return end == text.size() || !is_word(next_code_point(text, end));
}

size_t skip_space_back(std::string_view text, size_t begin) {
  while (begin > 0) {
    const char32_t c = code_point_before(text, begin);
    if (!is_white_space(c)) break;
    std::string spelled;
    append_utf8(spelled, c);
    begin -= spelled.size();
  }
  return begin;
}

size_t skip_space(std::string_view text, size_t end) {
  while (end < text.size()) {
    size_t next = end;
    if (!is_white_space(next_code_point(text, next))) break;
    end = next;
  }
  return end;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, const std::string& content) {
  if (content.empty()) return;
  begins_[static_cast<unsigned char>(content[0])] = true;
  int node = 0;
  for (const char c : content) {
    const uint64_t key = uint64_t(node) << 8 | static_cast<unsigned char>(c);
    const auto [it, inserted] = child_of_.emplace(key, static_cast<int>(token_at_.size()));
    if (inserted) token_at_.push_back(-1);
    node = it->second;
  }
  if (token_at_[node] < 0) token_at_[node] = static_cast<int>(tokens_.size());
  tokens_.push_back(token);
}

bool AddedTokenFinder::find(std::string_view text, size_t from, Match& match) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    int node = 0, best = -1;
    size_t best_end = begin;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto it = child_of_.find(uint64_t(node) << 8 | static_cast<unsigned char>(text[i]));
      if (it == child_of_.end()) break;
      node = it->second;
      if (token_at_[node] >= 0) {
        best = token_at_[node];
        best_end = i + 1;
      }
    }
    if (best >= 0) {
      match = {begin, best_end, best};
      return true;
    }
  }
  return false;
}

void AddedTokenFinder::split(std::string_view text, std::vector<AddedSplit>& out) const {
  size_t done = 0;
  Match match{};
  for (size_t from = 0; !tokens_.empty() && find(text, from, match); from = match.end) {
    const AddedToken& token = tokens_[match.token];
    if (token.single_word && !is_single_word(text, match.begin, match.end)) continue;
    size_t begin = match.begin, end = match.end;
    if (token.lstrip) begin = std::max(done, skip_space_back(text, begin));
    if (token.rstrip) end = skip_space(text, end);
    if (done < begin) out.push_back({text.substr(done, begin - done), -1});
    out.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), -1});
}

}  // namespace metroplex::text
