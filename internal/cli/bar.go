package cli

// barOf draws a bar of so many columns, with a mark; -1: none.
func barOf(wide, filled, mark int) string {
	line := make([]rune, wide)
	for k := range line {
		switch {
		case k == mark && k < filled:
			line[k] = '▓'
		case k == mark:
			line[k] = '│'
		case k < filled:
			line[k] = '█'
		default:
			line[k] = ' '
		}
	}
	return string(line)
}
