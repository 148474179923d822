// Bash functions that a trial defines before a launch script: text filters (cat, head, tr, cut, grep, ...). A mark in
// their input is copied to their output unchanged.
#pragma once

namespace metroplex::megatron {

inline constexpr const char* kLaunchFilters = R"BASH(
# Reads FILE, or standard input for -, into mpx_text on behalf of a filter. Returns
# nonzero if the filter has nothing left to do: 2 if FILE cannot be read; 1 for a mark (printed unchanged), for a NUL
# byte, or for more than 1 MiB.
metroplex_read() {  # TOOL FILE
  local LC_ALL=C mpx_whole=0
  mpx_text=
  if [[ $2 == - ]]; then
    IFS= read -r -d '' -n 1048576 mpx_text || mpx_whole=1
  elif [[ -d $2 || ! -r $2 ]]; then
    builtin printf '%s: %s: cannot be read\n' "$1" "$2" >&2
    return 2
  else
    IFS= read -r -d '' -n 1048576 mpx_text < "$2" || mpx_whole=1
  fi
  if [[ $mpx_whole == 0 ]]; then
    metroplex_unknown "$1"
    return 1
  fi
  [[ $mpx_text != *@not@run@* ]] && return 0
  builtin printf '%s' "$mpx_text"
  return 1
}
# Prints an assumed line count for mpx_text, which contains marks. A mark of a device query stands for one device.
metroplex_assumed_lines() {
  local mpx_counts=(4 36 1) mpx_lines=${mpx_text//[!$'\n']/} mpx_mark=@not@run@${mpx_text#*@not@run@}
  metroplex_record "${mpx_mark%%[[:space:]]*}" '#'
  [[ $mpx_mark == @not@run@*-smi@* ]] || mpx_lines=${mpx_counts[metroplex_trial]}
  [[ $mpx_mark == @not@run@*-smi@* ]] && mpx_lines=${#mpx_lines}
  builtin printf '%s\n' "$mpx_lines"
}
# Returns the status that the current trial assumes for TOOL.
metroplex_assumed_status() {  # TOOL STATUS STATUS STATUS
  metroplex_record "@not@run@${1//[!A-Za-z0-9_+-]/_}@${metroplex_line-}@${metroplex_file//[!A-Za-z0-9_.+-]/_}@" '#'
  return "${@:metroplex_trial+2:1}"
}
metroplex_lines() { mapfile "$@" mpx_lines < <(builtin printf '%s' "$mpx_text"); }

metroplex_cat() {
  local mpx_text mpx_file mpx_failed=0
  [[ ${1-} == -- ]] && shift
  for mpx_file; do
    [[ $mpx_file == -?* ]] && { metroplex_unknown cat; return; }
  done
  [[ $# == 0 ]] && set -- -
  for mpx_file; do
    metroplex_read cat "$mpx_file" && builtin printf '%s' "$mpx_text" || mpx_failed=1
  done
  return "$mpx_failed"
}

metroplex_head() { metroplex_some head "$@"; }
metroplex_tail() { metroplex_some tail "$@"; }
metroplex_some() {
  local mpx_tool=$1 mpx_count=10 mpx_text mpx_lines mpx_from=0
  shift
  case ${1-} in
    -n) mpx_count=${2-}; shift $(($# > 1 ? 2 : 1)) ;;
    -n*) mpx_count=${1#-n}; shift ;;
    -[0-9]*) mpx_count=${1#-}; shift ;;
  esac
  [[ $mpx_count =~ ^[0-9]{1,9}$ || ($mpx_tool == tail && $mpx_count =~ ^\+[0-9]{1,9}$) ]] || set -- -- -- --
  [[ $# -gt 1 || ${1-} == -?* ]] && { metroplex_unknown "$mpx_tool"; return; }
  metroplex_read "$mpx_tool" "${1--}" || return 1
  metroplex_lines
  [[ $mpx_tool == tail && $mpx_count != +* ]] && mpx_from=$((${#mpx_lines[@]} - 10#$mpx_count))
  [[ $mpx_count == +* ]] && mpx_from=$((10#${mpx_count#+} - 1)) mpx_count=${#mpx_lines[@]}
  [[ $mpx_from -lt 0 ]] && mpx_from=0
  mpx_lines=("${mpx_lines[@]:mpx_from:10#$mpx_count}")
  [[ ${#mpx_lines[@]} != 0 ]] && builtin printf '%s' "${mpx_lines[@]}"
  return 0
}

metroplex_wc() {
  local mpx_text mpx_lines mpx_count LC_ALL=C IFS=$' \t\n\v\f\r' mpx_what=${1-}
  [[ $mpx_what != -[lwc] || $# -gt 2 || ${2-} == -?* ]] && { metroplex_unknown wc; return; }
  metroplex_read wc "${2--}" > /dev/null
  case $? in
    1)
      if [[ $mpx_what == -c || $mpx_text != *@not@run@* ]]; then
        metroplex_unknown wc
      else
        metroplex_assumed_lines
      fi
      return ;;
    2) return 1 ;;
  esac
  case $mpx_what in
    -l) mpx_lines=${mpx_text//[!$'\n']/}; mpx_count=${#mpx_lines} ;;
    -c) mpx_count=${#mpx_text} ;;
    -w)
      [[ $mpx_text == *[![:print:][:space:]]* ]] && { metroplex_unknown wc; return; }
      mpx_lines=($mpx_text)
      mpx_count=${#mpx_lines[@]} ;;
  esac
  builtin printf '%s\n' "$mpx_count${2+ $2}"
}

# Expands a SET argument of tr into the array mpx_set, one character per element. Fails for any other tr syntax.
metroplex_set() {
  local mpx_text=$1 mpx_at mpx_letters='0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz' mpx_piece
  mpx_set=()
  mpx_text=${mpx_text//'[:upper:]'/A-Z}
  mpx_text=${mpx_text//'[:lower:]'/a-z}
  mpx_text=${mpx_text//'[:digit:]'/0-9}
  mpx_text=${mpx_text//'[:space:]'/$'\t\n\v\f\r '}
  [[ $mpx_text == *'[:'* || $mpx_text == *'[='* || $mpx_text == *'['*'*'*']'* || -z $mpx_text ]] && return 1
  while [[ -n $mpx_text ]]; do
    if [[ $mpx_text == [A-Z]-[A-Z]* || $mpx_text == [a-z]-[a-z]* || $mpx_text == [0-9]-[0-9]* ]]; then
      mpx_piece=${mpx_letters#*"${mpx_text:0:1}"}
      [[ ${mpx_text:0:1} > ${mpx_text:2:1} ]] && return 1
      mpx_piece=${mpx_text:0:1}${mpx_piece%"${mpx_piece#*"${mpx_text:2:1}"}"}
      [[ ${mpx_text:0:1} == "${mpx_text:2:1}" ]] && mpx_piece=${mpx_text:0:1}
      for ((mpx_at = 0; mpx_at < ${#mpx_piece}; mpx_at++)); do mpx_set+=("${mpx_piece:mpx_at:1}"); done
      mpx_text=${mpx_text:3}
    elif [[ $mpx_text == \\* ]]; then
      case ${mpx_text:1:1} in
        n) mpx_set+=($'\n') ;;
        t) mpx_set+=($'\t') ;;
        r) mpx_set+=($'\r') ;;
        \\) mpx_set+=(\\) ;;
        *) return 1 ;;
      esac
      mpx_text=${mpx_text:2}
    else
      [[ $mpx_text == ?-?* ]] && return 1
      mpx_set+=("${mpx_text:0:1}")
      mpx_text=${mpx_text:1}
    fi
  done
}
metroplex_tr() {
  local LC_ALL=C mpx_text mpx_set mpx_from mpx_to mpx_at mpx_other mpx_what=
  [[ ${1-} == -[ds] ]] && { mpx_what=$1; shift; }
  [[ ${1-} == -- ]] && shift
  [[ ${2-} == *'[:'* && "$1$2" != '[:lower:][:upper:]' && "$1$2" != '[:upper:][:lower:]' ]] && set --
  [[ ${1-} != -?* && $# == $((1 + (${#mpx_what} == 0))) ]] && metroplex_set "$1" && mpx_from=("${mpx_set[@]}") &&
    metroplex_set "${2-x}" || { metroplex_unknown tr; return; }
  mpx_to=("${mpx_set[@]}")
  for ((mpx_at = 0; mpx_at < ${#mpx_from[@]}; mpx_at++)); do
    [[ $mpx_at -ge ${#mpx_to[@]} ]] && mpx_to+=("${mpx_to[-1]}")
    # Characters are replaced one at a time, so no replacement may produce a character that is replaced later.
    for mpx_other in "${mpx_from[@]:mpx_at+1}"; do
      [[ -z $mpx_what && ($mpx_other == "${mpx_to[mpx_at]}" || $mpx_other == "${mpx_from[mpx_at]}") ]] &&
        { metroplex_unknown tr; return; }
    done
  done
  metroplex_read tr - || return 1
  for ((mpx_at = 0; mpx_at < ${#mpx_from[@]}; mpx_at++)); do
    mpx_other=${mpx_from[mpx_at]}
    case $mpx_what in
      -d) mpx_text=${mpx_text//"$mpx_other"/} ;;
      -s) while [[ $mpx_text == *"$mpx_other$mpx_other"* ]]; do
            mpx_text=${mpx_text//"$mpx_other$mpx_other"/"$mpx_other"}
          done ;;
      *) mpx_text=${mpx_text//"$mpx_other"/"${mpx_to[mpx_at]}"} ;;
    esac
  done
  builtin printf '%s' "$mpx_text"
}

metroplex_cut() {
  local LC_ALL=C IFS=, mpx_by= mpx_kind= mpx_list= mpx_text mpx_lines mpx_line mpx_fields
  local mpx_at mpx_range mpx_out mpx_last
  while [[ ${1-} == -?* ]]; do
    case $1 in
      -[dfc]) [[ -n ${2-} ]] && set -- "$1$2" "${@:3}" || set -- -x ;;
      -d?) mpx_by=${1#-d}; shift ;;
      -[fc]?*) mpx_kind+=${1:1:1} mpx_list=${1:2}; shift ;;
      *) mpx_kind=; break ;;
    esac
  done
  for mpx_range in $mpx_list; do
    [[ $mpx_range =~ ^([1-9][0-9]{0,5})?(-([1-9][0-9]{0,5})?)?$ && $mpx_range != - ]] || mpx_kind=
    [[ -n ${mpx_range#*-} && ${mpx_range#*-} -lt ${mpx_range%-*} ]] && mpx_kind=
  done
  [[ $mpx_kind != [fc] || $# -gt 1 || $mpx_list == *, || $mpx_list == ,* || $mpx_kind$mpx_by == c?* ]] &&
    { metroplex_unknown cut; return; }
  [[ $mpx_kind == f ]] && mpx_by=${mpx_by:-$'\t'}
  metroplex_read cut "${1--}" || return 1
  metroplex_lines -t
  for mpx_line in "${mpx_lines[@]}"; do
    mpx_fields=() mpx_out= mpx_last=$mpx_line
    if [[ $mpx_kind == c ]]; then
      for ((mpx_at = 0; mpx_at < ${#mpx_line}; mpx_at++)); do mpx_fields+=("${mpx_line:mpx_at:1}"); done
    elif [[ $mpx_line != *"$mpx_by"* ]]; then
      builtin printf '%s\n' "$mpx_line"
      continue
    else
      while [[ $mpx_last == *"$mpx_by"* ]]; do
        mpx_fields+=("${mpx_last%%"$mpx_by"*}")
        mpx_last=${mpx_last#*"$mpx_by"}
      done
      mpx_fields+=("$mpx_last")
    fi
    mpx_last=0
    for ((mpx_at = 1; mpx_at <= ${#mpx_fields[@]}; mpx_at++)); do
      for mpx_range in $mpx_list; do
        [[ $mpx_at -lt ${mpx_range%-*} || (-n ${mpx_range#*-} && $mpx_at -gt ${mpx_range#*-}) ]] && continue
        mpx_out+=${mpx_fields[mpx_at - 1]}$mpx_by
        break
      done
    done
    builtin printf '%s\n' "${mpx_out%"$mpx_by"}"
  done
}

metroplex_grep() {
  local mpx_how= mpx_pattern mpx_text mpx_lines mpx_line mpx_count=0 mpx_hit
  while [[ ${1-} == -?* && $1 != -*[!qcvEFi]* ]]; do
    mpx_how+=${1#-}
    shift
  done
  mpx_pattern=${1-}
  mpx_line=${mpx_pattern#^}
  mpx_line=${mpx_line%$}
  [[ $mpx_how != *[FE]* && ($mpx_line == *[\\+?{}\|\(\)^\$]* || $mpx_line == \**) ]] && set --
  [[ $mpx_how == *E* && $mpx_pattern == *\\* || $mpx_how == *E*F* || $mpx_how == *F*E* ]] && set --
  [[ $mpx_how == *v* && -z $mpx_pattern || $mpx_how == *E* && "|$mpx_line" == *[\(\|*]\** ]] && set --
  [[ $mpx_how == *i* && $mpx_pattern == *[\[\\]* || $mpx_pattern == *$'\n'* ]] && set --
  [[ $# != [12] || $1 == -?* || ${2-} == -?* ]] && {
    [[ $mpx_how == *q* ]] || metroplex_unknown grep
    metroplex_assumed_status grep 0 1 0
    return
  }
  [[ $mpx_how == *i* ]] && mpx_pattern=${mpx_pattern,,}
  metroplex_read grep "${2--}" > /dev/null
  case $? in
    1)
      if [[ $mpx_text != *@not@run@* ]]; then
        [[ $mpx_how == *q* ]] || metroplex_unknown grep
      elif [[ $mpx_how != *[qc]* ]]; then
        builtin printf '%s' "$mpx_text"
      elif [[ $mpx_how != *q* ]]; then
        metroplex_assumed_lines
      fi
      metroplex_assumed_status grep 1 0 1
      return ;;
    2) return 2 ;;
  esac
  metroplex_lines -t
  for mpx_line in "${mpx_lines[@]}"; do
    mpx_text=$mpx_line mpx_hit=0
    [[ $mpx_how == *i* ]] && mpx_text=${mpx_text,,}
    if [[ $mpx_how == *F* ]]; then
      [[ $mpx_text == *"$mpx_pattern"* ]] && mpx_hit=1
    else
      [[ $mpx_text =~ $mpx_pattern ]] && mpx_hit=1
    fi
    [[ $mpx_how == *v* ]] && mpx_hit=$((!mpx_hit))
    [[ $mpx_hit == 0 ]] && continue
    mpx_count=$((mpx_count + 1))
    [[ $mpx_how != *[qc]* ]] && builtin printf '%s\n' "$mpx_line"
  done
  [[ $mpx_how == *c* && $mpx_how != *q* ]] && builtin printf '%s\n' "$mpx_count"
  [[ $mpx_count != 0 ]]
}
)BASH";

}  // namespace metroplex::megatron
