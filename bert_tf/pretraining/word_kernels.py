"""The loops of create_pretraining_data.py that go over every character, compiled by Numba: UTF-8 text to tokens.

A word of the text (whatever is between spaces) is looked up by its bytes; a new word is also cut into pieces here.
What becomes of ASCII characters is a table that `BasicTokenizer` fills, words with others come through it, and pieces
are found in a trie of the vocabulary.
"""

import numpy as np

from bert_tf.system.numba_compile import compiled, inner

# What an ASCII character becomes besides a letter that stays: see `cut_words`.
DROPPED, SPACE, ALONE, LETTER = range(4)


@inner
def _child_slot(keys, node, byte):
    key = np.int64(node) * 256 + byte + 1  # 0: free
    mask = np.int64(len(keys) - 1)
    slot = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot, key


@compiled
def build_trie(data, ends, ids, continues, keys, children, token_at):
    """Puts the tokens of a vocabulary into a trie, from root 0 or, of those that continue a word, from root 1.

    data: uint8, the tokens' bytes (without "##"). ends: int64 [V], where each ends.
    keys, children: int64 and int32, zeros; a hash table of (node, byte) -> node, whose length is a power of two.
    token_at: int32, filled with -1; the token that ends at each node.
    """
    nodes, begin = 2, 0
    for number in range(len(ends)):
        node = 1 if continues[number] else 0
        for k in range(begin, ends[number]):
            slot, key = _child_slot(keys, node, data[k])
            if keys[slot] == 0:
                keys[slot], children[slot] = key, nodes
                nodes += 1
            node = children[slot]
        if ends[number] > begin:
            token_at[node] = ids[number]
        begin = ends[number]


@inner
def _cut_token(text, begin, end, trie, unknown_id, max_characters, pieces, count):
    """Writes the pieces of text[begin:end], longest first from the left, to pieces[count:]; returns how many in all."""
    keys, children, token_at = trie
    characters = 0
    for k in range(begin, end):
        characters += (text[k] & 0xC0) != 0x80
    first, at = count, begin
    while at < end and characters <= max_characters:
        node, best, best_end = 0 if at == begin else 1, -1, at
        for k in range(at, end):
            slot, _ = _child_slot(keys, node, text[k])
            if keys[slot] == 0:
                break
            node = children[slot]
            if token_at[node] >= 0:
                best, best_end = token_at[node], k + 1
        if best < 0:
            break
        pieces[count] = best
        count += 1
        at = best_end
    if at < end:
        count = first
        pieces[count] = unknown_id
        count += 1
    return count


@compiled
def cut_words(arena, ends, is_ascii, kinds, letters, split_text, trie, unknown_id, max_characters, pieces, starts):
    """Fills in the ids of the pieces of words, and where those of each end; returns how many there are.

    arena, ends: word k is arena[ends[k]:ends[k + 1]].
    kinds, letters: uint8 [128]: what an ASCII character becomes: nothing, a space, a separate token, or a letter.
    split_text: uint8, basic tokens of the words that are not ASCII, with spaces between; a newline ends each word.
    trie: see `build_trie`. unknown_id: for what is in no piece, or longer than max_characters.
    """
    longest = 1
    for k in range(len(is_ascii)):
        longest = max(longest, ends[k + 1] - ends[k])
    token = np.empty(longest, np.uint8)
    count = other = 0
    for word in range(len(is_ascii)):
        if is_ascii[word]:
            size = 0
            for k in range(ends[word], ends[word + 1]):
                kind = kinds[arena[k]]
                if kind == LETTER:
                    token[size] = letters[arena[k]]
                    size += 1
                elif kind != DROPPED:
                    if size:
                        count = _cut_token(token, 0, size, trie, unknown_id, max_characters, pieces, count)
                    size = 0
                    if kind == ALONE:
                        token[0] = letters[arena[k]]
                        count = _cut_token(token, 0, 1, trie, unknown_id, max_characters, pieces, count)
            if size:
                count = _cut_token(token, 0, size, trie, unknown_id, max_characters, pieces, count)
        else:
            while split_text[other] != 0x0A:
                begin = other
                while split_text[other] != 0x20 and split_text[other] != 0x0A:
                    other += 1
                if other > begin:
                    count = _cut_token(split_text, begin, other, trie, unknown_id, max_characters, pieces, count)
                if split_text[other] == 0x20:
                    other += 1
            other += 1
        starts[word] = count
    return count


@compiled
def find_words(data, at, slots, arena, arena_ends, count, numbers):
    """Numbers for the words of UTF-8 text, which are separated by spaces and newlines; a newline itself is number 0.

    data: uint8, the text. at: where to continue in it. slots: a hash table of numbers, 0 where free.
    arena, arena_ends: the bytes of word n end at arena_ends[n] and begin where word n - 1 ends.
    count: numbers given so far. numbers: filled in.

    Returns (where it ended in data, numbers filled in, new count). It ends early if there is no room for another word.
    """
    filled, mask, size = 0, np.int64(len(slots) - 1), len(data)
    while at < size:
        byte = data[at]
        if byte == 0x20:
            at += 1
            continue
        if filled == len(numbers):
            break
        if byte == 0x0A:
            numbers[filled] = 0
            filled += 1
            at += 1
            continue
        end, key = at, np.uint64(14695981039346656037)  # FNV-1a, mixed once more
        while end < size and data[end] != 0x20 and data[end] != 0x0A:
            key = (key ^ np.uint64(data[end])) * np.uint64(1099511628211)
            end += 1
        slot = np.int64(key ^ (key >> np.uint64(29))) & mask
        while True:
            number = np.int64(slots[slot])
            if number == 0:
                break
            begin = arena_ends[number - 1]
            if arena_ends[number] - begin == end - at:
                k = 0
                while at + k < end and arena[begin + k] == data[at + k]:
                    k += 1
                if at + k == end:
                    break
            slot = (slot + 1) & mask
        if number == 0:
            begin = arena_ends[count - 1]
            if count == len(arena_ends) or begin + end - at > len(arena):
                break
            for k in range(end - at):
                arena[begin + k] = data[at + k]
            arena_ends[count] = begin + end - at
            slots[slot] = count
            number = count
            count += 1
        numbers[filled] = number
        filled += 1
        at = end
    return at, filled, count


@compiled
def cut_sentences(words, pieces, starts, visible, separator, carry, tokens, sentence_ends, document_ends):
    """Numbers of words to tokens, sentences and documents.

    words, pieces, starts, visible: see `token_store.Encoded`. separator: see `token_store.tokenize`.
    carry: int64 [5], updated: tokens and sentences so far, the tokens at the last sentence's end, the sentences at the
      last document's end, and whether the open line has anything to see.
    tokens, sentence_ends, document_ends: filled in; returns how many of each.
    """
    num_tokens = num_sentences = num_documents = 0
    total_tokens, total_sentences, sentence_begin, document_begin, line_visible = carry
    for word in words:
        if word:
            line_visible |= visible[word]
            for k in range(starts[word], starts[word + 1]):
                tokens[num_tokens] = pieces[k]
                num_tokens += 1
        elif line_visible or total_sentences + num_sentences > document_begin:
            # The end of a line ends its sentence. A blank line ends a document, with a separator as its last sentence.
            if total_tokens + num_tokens > sentence_begin if line_visible else separator >= 0:
                if separator >= 0:
                    tokens[num_tokens] = separator
                    num_tokens += 1
                sentence_begin = total_tokens + num_tokens
                sentence_ends[num_sentences] = sentence_begin
                num_sentences += 1
            if not line_visible:
                document_begin = total_sentences + num_sentences
                document_ends[num_documents] = document_begin
                num_documents += 1
            line_visible = 0
    carry[0], carry[1] = total_tokens + num_tokens, total_sentences + num_sentences
    carry[2], carry[3], carry[4] = sentence_begin, document_begin, line_visible
    return num_tokens, num_sentences, num_documents
